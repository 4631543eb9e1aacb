"""Messages to token ids: prompts and replies. hint_placement.py puts the hint into a prompt.

Messages are those of the `sessions` table. A prompt is what the chat template renders for the messages before a reply,
with the generation prompt; a reply is what it renders after that, encoded on its own. The two are never one string.
"""

import datetime
import inspect
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from opdkit.chat.control_tokens import ChatError, Encoder, any_of
from opdkit.chat.finish_reasons import is_incomplete
from opdkit.chat.markup import opens_thinking, split_calls, split_thinking, visible
from opdkit.chat.openai_messages import Message, merge_messages, openai_message, read_tool_definitions
from opdkit.console import warn
from opdkit.errors import ConfigError

# Date for templates that ask for today's, so that prompts stay the same from day to day: Llama 3's own fallback.
TEMPLATE_DATE = datetime.date(2024, 7, 26)

EMPTY_THINKING = re.compile(r"\s*+(?:<think>)?\s*+</think>\s*")
# An empty thought with which a prompt says that there is none: Qwen's and DeepSeek's, Gemma 4's, Command's.
_NO_THOUGHT = re.compile(
    r"<think>\s*</think>\s*|<\|channel>thought\s*<channel\|>|<\|START_THINKING\|><\|END_THINKING\|>"
)
_TODAY = re.compile(r"""strftime_now\(\s*(?P<quote>['"])(?P<format>.*?)(?P=quote)\s*\)""")

# Messages to probe the template with: a question, a text or a call in reply, and the call's result.
_ASKED: list[Message] = [{"role": "user", "content": "?"}]
_REPLY = "opdkit's probe"
_THOUGHT = "opdkit's thought"
_REPLIED = [*_ASKED, {"role": "assistant", "content": _REPLY}]
_CALL = {"id": "call00000", "name": "probe", "arguments": '{"opdkit": 1}'}
_CALLED = [*_ASKED, {"role": "assistant", "content": None, "tool_calls": [_CALL]}]
_RESULT = "opdkit's result"
_ANSWERED = [*_CALLED, {"role": "tool", "content": _RESULT, "name": "probe", "tool_call_id": _CALL["id"]}]
_TOOLS = '[{"name": "opdkit", "description": "", "parameters": {"type": "object", "properties": {}}}]'
_LONG_ID = [*_ASKED, {"role": "assistant", "content": None, "tool_calls": [_CALL | {"id": "call-of-a-server"}]}]


@dataclass(frozen=True)
class ReplyTokens:
    """Tokens of one reply, and which of them the policy really sampled (the others are masked out of the loss)."""

    ids: list[int]
    mask: list[bool]


@dataclass(frozen=True)
class FittedPrompt:
    """Prompt within its token budget: its ids, and the number of messages cut off its beginning."""

    ids: list[int]
    cut: int


class Chat:
    r"""Chat template of one tokenizer, with its arguments.

    `stop_ids` are the tokens that end a reply: the tokenizer's EOS token, those of the generation configuration
    (`eos_ids`), and the token that the template itself writes after a reply. `end_id` is this last one, else the
    tokenizer's EOS token, else None. `tags_calls`: calls are written as `split_calls` reads them.
    `begins_with_thinking`: prompts end with an open thought.

    A template that asks for today's date gets `TEMPLATE_DATE`; a user may set the argument `date_string` if the
    template reads it. Raises ConfigError for a tokenizer without a template and for arguments that would replace
    opdkit's own.

    With ChatML, for the messages user "2 + 2?" and assistant "4":

        prompt_ids(messages[:1])                         <|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n
        reply(messages, 1)                               4<|im_end|>       without the line break after it
        reply(messages, 1, finish_reason="length")       4                 the stop token was never sampled
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template_args: Mapping[str, Any],
        eos_ids: int | Iterable[int] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template_args = dict(template_args)
        self._encoder = Encoder(tokenizer)
        self._check_template()
        # Some tokenizers (Hermes 3, Command R) have another template for requests with tools.
        self._tools = _TOOLS if isinstance(tokenizer.chat_template, dict) else None
        # Most templates take the arguments of a call as an object, DeepSeek's as text.
        self._arguments_as_text = self._short_ids = False
        rendered = self._try_render(_CALLED, self._tools)
        if rendered is None or "{'opdkit': 1}" in rendered:  # printed as a Python dict, which is not JSON
            self._arguments_as_text = True
            self._arguments_as_text = (rendered := self._try_render(_CALLED, self._tools)) is not None
        # Mistral's templates take ids of nine letters and digits only; servers of these models shorten longer ones.
        self._short_ids = rendered is not None and self._try_render(_LONG_ID, self._tools) is None
        self.tags_calls = bool(split_calls((rendered or "").rpartition("?")[2])[1])
        called, answered = (self._try_render([*before, *_ASKED], self._tools) for before in (_CALLED, _ANSWERED))
        self._left_out = {"calls"} if called is not None and "probe" not in called else set[str]()
        if answered is not None and _RESULT not in answered:
            self._left_out.add("tool results")
        self._encoder.break_always(self._find_headers())
        prompt, added = self._try_render(_ASKED, generation_prompt=True), tokenizer.added_tokens_decoder
        self.begins_with_thinking = opens_thinking(prompt or "")
        if prompt and (ids := self._encoder.ids(prompt)) and ids[-1] not in added:
            self._encoder.continue_text()
        given = [eos_ids] if isinstance(eos_ids, int) else list(eos_ids or ())
        end_id = self._find_special_id(self._try_render(_REPLIED), _REPLY)
        self._ends = ["", ""]  # of a text and of a call, if the template writes no stop token after them
        if end_id is None:  # GLM's models stop at the header of the next message
            behind = self._find_special_id(self._try_render([*_REPLIED, *_ASKED]), _REPLY)
            after_call = self._find_special_id(self._try_render(_ANSWERED, self._tools), rendered or "")
            self._ends = [added[i].content if i in given else "" for i in (behind, after_call)]
            end_id = behind if behind in given else None
        self.end_id: int | None = tokenizer.eos_token_id if end_id is None else end_id
        self.stop_ids = frozenset(i for i in [self.end_id, tokenizer.eos_token_id, *given] if i is not None)
        self._stop = re.compile(any_of([added[i].content for i in self.stop_ids if i in added]) or "(?!)")

    def prompt_ids(self, messages: list[Message], tools: str | None = None) -> list[int]:
        """Return the token ids of the messages with the generation prompt. Raises ChatError."""
        return self._encoder.ids(self._render(messages, tools, generation_prompt=True))

    def find_left_out(self, messages: list[Message]) -> list[str]:
        """Return which parts of these messages the template writes nothing of: calls, tool results."""
        has_part = {"calls": any(m.get("tool_calls") for m in messages),
                    "tool results": any(m["role"] == "tool" for m in messages)}  # fmt: skip
        return [part for part, has in has_part.items() if has and part in self._left_out]

    def encode_question(self, messages: list[Message]) -> list[int]:
        """Return the ids of a judge's question: one user message if the template takes or writes no system message."""
        rendered, system = self._try_render(messages, generation_prompt=True), messages[0]["content"].strip()
        if rendered is None or self._encoder.as_data(system, sampled=False) not in rendered:
            return self.prompt_ids([merge_messages(messages)])
        return self._encoder.ids(rendered)

    def reply(
        self,
        messages: list[Message],
        index: int,
        tools: str | None = None,
        finish_reason: str | None = None,
        token_ids: list[int] | None = None,
    ) -> ReplyTokens:
        """Return the tokens of the assistant message at `index`, exactly as they follow `prompt_ids(messages[:index])`.

        They are the logged `token_ids`, if any; else what the template renders after the prompt, up to and including
        the stop token. A reply that was cut off or interrupted (`finish_reason`) ends where its text ends: the closing
        tags and the stop token that a template adds were never sampled. An empty think block that the template makes up
        is masked, or filled with the thinking in the content; if that is left open, the reply was cut off. Raises
        ChatError if the template's rendering of the conversation does not continue the prompt, or leaves out text or
        calls of the reply.
        """
        if token_ids is not None:
            return ReplyTokens(list(token_ids), [True] * len(token_ids))
        message = messages[index]
        prompt = self._render(messages[:index], tools, generation_prompt=True)
        whole = self._render(messages[: index + 1], tools, generation_prompt=False)
        if whole.startswith(prompt):
            rendered, closing = whole[len(prompt) :], ""
        else:
            rendered, closing = self._find_reply(messages[:index], message, tools, prompt, whole)
        self._check_complete(messages[: index + 1], tools, whole, rendered)
        text, reasoning = (message["content"] or "").lstrip(), (message.get("reasoning") or "").strip()
        masked, empty_thinking = "", EMPTY_THINKING.match(rendered)
        made_up = closing or (empty_thinking[0] if empty_thinking else "")
        if made_up and reasoning:  # the template wrote this block in place of the thinking
            masked = made_up
        elif made_up:
            is_closed, (thought, answer) = "</think>" in text, split_thinking(text)
            is_open = text.startswith("<think>") and not is_closed and not message.get("tool_calls")
            if is_open or (is_closed and thought):  # the thinking in the text belongs in the block
                apart = message | {"content": answer, "reasoning": thought}
                return self.reply([*messages[:index], apart], index, tools, "length" if is_open else finish_reason)
            masked = "" if is_closed else made_up
        sampled = self._cut_sampled(rendered[len(masked) :], message, is_incomplete(finish_reason))
        masked_ids, sampled_ids = map(self._encoder.encode_continuation, (masked, sampled))
        return ReplyTokens(masked_ids + sampled_ids, [False] * len(masked_ids) + [True] * len(sampled_ids))

    def reply_ids(self, text: str) -> list[int]:
        """Return the token ids of a reply as a model wrote it, control tokens included. Raises ChatError."""
        return self._encoder.encode_continuation(text)

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of the ids, control tokens included."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def find_tokens_between(self, ids: list[int], start: int, end: int) -> range:
        """Return the indices of the tokens that hold the characters from `start` up to `end` of `text(ids)`."""
        text = self.text(ids)

        def settled(count: int) -> int:
            """Return how many characters the first `count` tokens complete; half a character does not count."""
            beginning = self.text(ids[:count])
            return len(beginning if text.startswith(beginning) else beginning.rstrip("\ufffd"))

        counts = range(len(ids) + 1)
        first = bisect_left(counts, start, key=settled)
        first -= settled(first) > start  # this character shares a token with the one before
        return range(first, bisect_left(counts, end, lo=first + 1, hi=min(first + 16, len(ids)), key=settled))

    def opens_thinking(self, prompt_ids: list[int]) -> bool:
        """Return whether a prompt ends with an open think block, as templates of reasoning models write it."""
        return opens_thinking(self.text(prompt_ids[-8:]))

    def visible_text(self, reply: str, prompt_ids: list[int]) -> str:
        """Return the part of a reply to this prompt that its reader sees: without thinking."""
        return visible(reply, self.opens_thinking(prompt_ids))

    def _render(self, messages: list[Message], tools: str | None, *, generation_prompt: bool) -> str:
        """Return what the template renders for these messages, with breaks in their texts. Raises ChatError."""
        if not messages:
            raise ChatError("no prompt")
        try:
            definitions = self._encoder.as_data(read_tool_definitions(tools), sampled=False)
            as_data = []
            for message in messages:
                fields = openai_message(message, arguments_as_text=self._arguments_as_text, short_ids=self._short_ids)
                role = fields.pop("role")
                as_data.append({"role": role, **self._encoder.as_data(fields, sampled=role == "assistant")})
            return self.tokenizer.apply_chat_template(
                as_data,
                tools=definitions,
                chat_template=_fix_date(self.tokenizer.get_chat_template(None, definitions)),
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self.template_args,
            )
        except (TemplateError, TypeError, ValueError, KeyError, RecursionError) as error:
            raise ChatError(f"template: {' '.join(str(error).split())[:120]}") from error

    def _check_complete(self, messages: list[Message], tools: str | None, whole: str, rendered: str) -> None:
        """Raise ChatError if the `whole` rendering leaves out calls or text of the last message.

        Many templates do not support calls: for a call, they write just the stop token, as for an empty reply.
        """
        *before, message = messages
        text, calls = (message["content"] or "").strip(), message.get("tool_calls") or ()
        others = {}
        # A rendered call holds its name. If one is missing, the comparison decides, which costs a rendering.
        said = "\n".join([text, message.get("reasoning") or "", *(call["arguments"] for call in calls)])
        names = [call["name"] for call in calls]
        if any(rendered.count(name) - said.count(name) < "\n".join(names).count(name) for name in names):
            others["calls"] = {"tool_calls": calls[:-1]}
            others["the names of calls"] = {"tool_calls": [call | {"name": "opdkit"} for call in calls]}
        if text and self._encoder.as_data(text, sampled=True) not in rendered:
            others["text of a reply"] = {"content": "opdkit"}
        for part, other in others.items():
            if self._try_render([*before, message | other], tools) == whole:
                raise ChatError(f"template: leaves out {part}")

    def _find_reply(
        self, before: list[Message], message: Message, tools: str | None, prompt: str, whole: str
    ) -> tuple[str, str]:
        """Return the reply `message` in the `whole` rendering, which does not begin with the `prompt` of that reply.

        Also return the text at its beginning that closes the thought which the prompt opens; "" if there is none.

        - Mistral's templates write the system message into the last user message only if no reply follows, gpt-oss's
          leaves out thinking before a final reply: the reply follows the last message and the header.
        - Others (Hermes) end a tool's result in another way if a reply follows: the reply follows the header.
        - Gemma 4's, GLM's and MiniMax's prompts end with a thought, empty or open, that the rendering leaves out.
        - Apertus's prompts repeat the header after a tool's result.

        Another reply shows how far what precedes may reach. Raises ChatError if none of this holds.
        """
        probe = message | {"content": "1" if (message["content"] or "").lstrip().startswith("0") else "0"}
        other = self._render([*before, probe | {"reasoning": None, "tool_calls": []}], tools, generation_prompt=False)
        start = _find_common(whole, other)  # at most to the first character of the reply
        last = self._encoder.as_data((before[-1]["content"] or "").strip(), sampled=before[-1]["role"] == "assistant")
        question = self._try_render(before, tools) or ""
        header = prompt.removeprefix(question)
        # The last message is before the header, which may hold the same text: "hi" is in <think>, too.
        at = prompt.rfind(last, 0, len(prompt) - len(header) or None) if last else -1
        behind = max(len(_drop_half_tag(_find_common(question, start))), start.rfind(last) + len(last) if last else 0)
        for ending, lowest in ((prompt[at:] if at >= 0 else "", 0), (header, behind)):
            if (ending := ending.rstrip()) and (found := start.rfind(ending, lowest)) >= 0:
                return whole[found + len(ending) :].removeprefix(prompt[len(prompt.rstrip()) :]), ""
        common = _drop_half_tag(_find_common(prompt, start))
        thought, reply = prompt[len(common) :], whole[len(common) :]
        logged = self._encoder.as_data((message.get("reasoning") or "").strip(), sampled=True)
        if (not logged or logged not in reply) and "</think>" not in (message["content"] or ""):
            closed = EMPTY_THINKING.match(reply)
            if _NO_THOUGHT.fullmatch(thought):
                return reply[closed.end() if closed else 0 :], ""
            if closed and _NO_THOUGHT.fullmatch(thought + closed[0]):
                return reply, ""
            other = self._try_render([*before, message | {"reasoning": _THOUGHT}], tools) or ""
            opening, _, rest = other.removeprefix(prompt).partition(_THOUGHT)
            if other.startswith(prompt) and not opening.strip() and rest.endswith(reply):
                closing = opening + rest.removesuffix(reply)
                return closing + reply, closing
        asked, generation = self._try_render(_ASKED), self._try_render(_ASKED, generation_prompt=True)
        if start == question and asked and generation == asked + header:
            return reply, ""
        raise ChatError("reply does not continue the prompt")

    def _cut_sampled(self, rendered: str, message: Message, cut_off: bool) -> str:
        """Return the part of a rendered reply that the policy wrote: up to and including the stop token, or to the cut.

        Breaks keep the message's text from being a stop token here, so stop tokens are the template's. Some templates
        (GigaChat's) write one between the parts of a reply; the first behind the beginning of its last part ends it.
        """
        calls = message.get("tool_calls") or ()
        text, *names = self._encoder.as_data([message["content"] or "", *(c["name"] for c in calls)], sampled=True)
        stop = self._stop.search(rendered, max(0, rendered.find(text.strip()), *map(rendered.rfind, names)))
        if not cut_off:
            return rendered[: stop.end()] if stop else rendered.rstrip() + self._ends[bool(message.get("tool_calls"))]
        text = rendered[: stop.start()] if stop else rendered
        logged = [message.get("content"), message.get("reasoning")]  # thinking is sampled first, calls are last
        if message.get("tool_calls"):
            call = message["tool_calls"][-1]
            logged = [call["arguments"], call["name"]]
        last = next((field.strip() for field in logged if field and field.strip()), "")
        last = self._encoder.as_data(last, sampled=True)
        if last not in text:  # the prompt may have opened the thought
            last = last.removeprefix("<think>").lstrip()
        start = text.rfind(last) if last else 0
        if start < 0:
            raise ChatError("the end of a cut-off reply is not in its rendering")
        return text[: start + len(last)]

    def _check_template(self) -> None:
        """Raise ConfigError for an unusable template or arguments that opdkit sets; warn of arguments it ignores."""
        templates = self.tokenizer.chat_template
        where = self.tokenizer.name_or_path
        if not templates:
            raise ConfigError(f"the tokenizer of {where} has no chat template; use the model's chat (instruct) version")
        text = "\n".join(templates.values()) if isinstance(templates, dict) else templates
        own = inspect.signature(self.tokenizer.apply_chat_template).parameters.keys() | {"messages"}
        for name in self.template_args:
            if name in own:
                raise ConfigError(f"--template-arg {name}: opdkit sets this itself; pass only the template's own")
            if not re.search(rf"\b{re.escape(name)}\b", text):
                warn(f"--template-arg {name}: the chat template of {where} does not read it")
        if "strftime_now(" in _fix_date(text):
            raise ConfigError(f"the chat template of {where} writes today's date in a format that it computes, so that "
                              "tomorrow's prompts would differ; write the date into the template")  # fmt: skip

    def _try_render(
        self, messages: list[Message], tools: str | None = None, *, generation_prompt: bool = False
    ) -> str | None:
        """Return what the template renders for these messages; None if it refuses them."""
        try:
            return self._render(messages, tools, generation_prompt=generation_prompt)
        except ChatError:
            return None

    def _find_headers(self) -> Set[str]:
        """Return control tokens that say who speaks, or hold a tool's result, but are not special in this vocabulary.

        Examples are DeepSeek's `<｜User｜>` and Qwen's `<tool_response>`. If a user had the model repeat such a token,
        that reply must not open somebody else's turn in later prompts.
        """
        if not self._encoder.words:
            return frozenset()
        question, prompt = self._try_render(_ASKED), self._try_render(_ASKED, generation_prompt=True)
        # Control tokens after a reply are headers; before it, a system prompt may explain `<think>`.
        behind = (self._try_render([*_REPLIED, *_ASKED]) or question or "").rpartition(_REPLY)[2]
        called, answered = (self._try_render(messages, self._tools) for messages in (_CALLED, _ANSWERED))
        tokens = [self._encoder.control_tokens(text or "") for text in (behind, question, prompt, called, answered)]
        of_next, of_question, of_prompt, of_call, of_result = tokens
        # The first control token of a generation prompt is a header, too. After it, `<think>` opens the reply itself.
        header = next((token for token, other in zip_longest(of_prompt, of_question) if token != other), None)
        return self._encoder.words & {*of_next, header, *(Counter(of_result) - Counter(of_call))}

    def _find_special_id(self, rendered: str | None, before: str) -> int | None:
        """Return the first special token after `before` in a rendering; None if there is none."""
        if rendered is None:  # the template refuses the messages; then the configured stop tokens must do
            return None
        after = self._encoder.encode_continuation(rendered[rendered.rfind(before) + len(before) :])
        added = self.tokenizer.added_tokens_decoder
        return next((i for i in after if i in added and added[i].special), None)


def _find_common(a: str, b: str) -> str:
    """Return what both texts begin with."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # the first `low` characters are equal; comparing slices is faster than characters one by one
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return a[:low]


def _drop_half_tag(text: str) -> str:
    return re.sub(r"<[^<>\s]*\Z", "", text)


def _fix_date(template: str) -> str:
    return _TODAY.sub(lambda call: repr(TEMPLATE_DATE.strftime(call["format"])), template)


def fit(chat: Chat, messages: list[Message], tools: str | None, budget: float, too_long: str) -> FittedPrompt:
    """Return the prompt within `budget` tokens. Raises ChatError("too long") if it does not fit.

    With `too_long` "cut", whole messages are cut off the beginning until it fits. System messages stay. The rest begins
    with a user message, so that no tool result is left without its call. The last user message (with the hint) is never
    cut.
    """
    ids = chat.prompt_ids(messages, tools)
    if len(ids) <= budget:
        return FittedPrompt(ids, 0)
    roles = [m["role"] for m in messages if m["role"] != "system"]
    counts = [n for n, role in enumerate(roles) if n and role == "user"] if too_long == "cut" else []
    low, high = 0, len(counts)
    fitting = None
    while low < high:  # find the fewest messages to cut: fewer messages have fewer tokens
        middle = (low + high) // 2
        ids = chat.prompt_ids(drop_first_messages(messages, counts[middle]), tools)
        if len(ids) <= budget:
            fitting, high = FittedPrompt(ids, counts[middle]), middle
        else:
            low = middle + 1
    if fitting is None:
        raise ChatError("too long")
    return fitting


def drop_first_messages(messages: list[Message], count: int) -> list[Message]:
    """Return `messages` without the first `count` of those that are not system messages."""
    kept, left = [], count
    for message in messages:
        if left and message["role"] != "system":
            left -= 1
        else:
            kept.append(message)
    return kept
