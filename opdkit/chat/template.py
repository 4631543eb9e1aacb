"""Messages to token ids: prompts and replies. hint_placement.py puts the hint into a prompt.

Messages are those of the `sessions` table. A prompt is what the chat template renders for the messages before a reply,
with the generation prompt; a reply is what it renders after that, encoded on its own. The two are never one string.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from transformers import PreTrainedTokenizerBase

from opdkit.chat.control_tokens import ChatError, Encoder, any_of
from opdkit.chat.finish_reasons import is_incomplete
from opdkit.chat.markup import opens_thinking, split_calls, split_thinking, visible
from opdkit.chat.openai_messages import Message, merge_messages
from opdkit.chat.rendering import ANSWERED, ASKED, CALLED, REPLIED, REPLY, RESULT, ChatTemplate
from opdkit.chat.reply_text import EMPTY_THINKING, render_reply


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
    Raises what `ChatTemplate` raises.

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
        self._encoder = Encoder(tokenizer)
        self._template = template = ChatTemplate(tokenizer, template_args, self._encoder)
        self.tags_calls = bool(split_calls((template.called or "").rpartition("?")[2])[1])
        called, answered = (
            template.try_render([*before, *ASKED], template.probe_tools) for before in (CALLED, ANSWERED)
        )
        self._left_out = {"calls"} if called is not None and "probe" not in called else set[str]()
        if answered is not None and RESULT not in answered:
            self._left_out.add("tool results")
        self._encoder.break_always(self._find_headers())
        prompt = template.try_render(ASKED, generation_prompt=True)
        self.begins_with_thinking = opens_thinking(prompt or "")
        if prompt and (ids := self._encoder.ids(prompt)) and ids[-1] not in tokenizer.added_tokens_decoder:
            self._encoder.continue_text()
        self._find_stop_tokens([eos_ids] if isinstance(eos_ids, int) else list(eos_ids or ()))

    def _find_stop_tokens(self, configured: list[int]) -> None:
        """Set which tokens end a reply: of the configured ones, and those that the template writes after a reply."""
        template, tokenizer, added = self._template, self.tokenizer, self.tokenizer.added_tokens_decoder
        end_id = self._find_special_id(template.try_render(REPLIED), REPLY)
        self._ends = ["", ""]  # of a text and of a call, if the template writes no stop token after them
        if end_id is None:  # GLM's models stop at the header of the next message
            behind = self._find_special_id(template.try_render([*REPLIED, *ASKED]), REPLY)
            answered = template.try_render(ANSWERED, template.probe_tools)
            after_call = self._find_special_id(answered, template.called or "")
            self._ends = [added[i].content if i in configured else "" for i in (behind, after_call)]
            end_id = behind if behind in configured else None
        self.end_id: int | None = tokenizer.eos_token_id if end_id is None else end_id
        self.stop_ids = frozenset(i for i in [self.end_id, tokenizer.eos_token_id, *configured] if i is not None)
        self._stop = re.compile(any_of([added[i].content for i in self.stop_ids if i in added]) or "(?!)")

    def prompt_ids(self, messages: list[Message], tools: str | None = None) -> list[int]:
        """Return the token ids of the messages with the generation prompt. Raises ChatError."""
        return self._encoder.ids(self._template.render(messages, tools, generation_prompt=True))

    def find_left_out(self, messages: list[Message]) -> list[str]:
        """Return which parts of these messages the template writes nothing of: calls, tool results."""
        has_part = {"calls": any(m.get("tool_calls") for m in messages),
                    "tool results": any(m["role"] == "tool" for m in messages)}  # fmt: skip
        return [part for part, has in has_part.items() if has and part in self._left_out]

    def encode_question(self, messages: list[Message]) -> list[int]:
        """Return the ids of a judge's question: one user message if the template takes or writes no system message."""
        rendered, system = self._template.try_render(messages, generation_prompt=True), messages[0]["content"].strip()
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
        the stop token. A reply that was cut off or interrupted (`finish_reason`) ends where its text ends. The closing
        tags and the stop token that a template adds were never sampled. An empty think block that the template makes up
        is masked, or filled with the thinking in the content; if that is left open, the reply was cut off. Raises
        ChatError if the template's rendering of the conversation does not continue the prompt, or leaves out text or
        calls of the reply.
        """
        if token_ids is not None:
            return ReplyTokens(list(token_ids), [True] * len(token_ids))
        message = messages[index]
        rendered, closing = render_reply(self._template, messages[:index], message, tools)
        text, reasoning = (message["content"] or "").lstrip(), (message.get("reasoning") or "").strip()
        empty_thinking = EMPTY_THINKING.match(rendered)
        made_up = closing or (empty_thinking[0] if empty_thinking else "")
        is_closed, (thought, answer) = "</think>" in text, split_thinking(text)
        is_open = text.startswith("<think>") and not is_closed and not message.get("tool_calls")
        if made_up and not reasoning and (is_open or (is_closed and thought)):
            apart = message | {"content": answer, "reasoning": thought}  # the thinking in the text fills the block
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

    def _cut_sampled(self, rendered: str, message: Message, cut_off: bool) -> str:
        """Return the part of a rendered reply that the policy wrote: up to and including the stop token, or to the cut.

        Breaks keep the message's text from being a stop token here, so stop tokens are the template's. Some templates
        (GigaChat's) write one between the parts of a reply; the first behind the beginning of its last part ends it.
        """
        calls = message.get("tool_calls") or ()
        fields = [message.get("reasoning") or "", message["content"] or "", *(c["name"] for c in calls)]
        thought, text, *names = (field.strip() for field in self._encoder.as_data(fields, sampled=True))
        begin = rendered.find(thought) + len(thought) if thought in rendered else 0
        stop = self._stop.search(rendered, max(0, rendered.find(text, begin), *map(rendered.rfind, names)))
        if not cut_off:
            return rendered[: stop.end()] if stop else rendered.rstrip() + self._ends[bool(message.get("tool_calls"))]
        text = rendered[: stop.start()] if stop else rendered
        logged = [message.get("content"), message.get("reasoning")]  # thinking is sampled first, calls are last
        if message.get("tool_calls"):
            call = message["tool_calls"][-1]
            logged = [call["arguments"], call["name"]]
        # Broken before it is stripped, like the text in the rendering: white space may stand beside half a token.
        last = next((t for field in logged if field and (t := self._encoder.as_data(field, sampled=True).strip())), "")
        if last not in text:  # the prompt may have opened the thought
            last = last.removeprefix("<think>").lstrip()
        start = text.rfind(last) if last else 0
        if start < 0:
            raise ChatError("the end of a cut-off reply is not in its rendering")
        return text[: start + len(last)]

    def _find_headers(self) -> Set[str]:
        """Return control tokens that say who speaks, or hold a tool's result, but are not special in this vocabulary.

        Examples are DeepSeek's `<｜User｜>` and Qwen's `<tool_response>`. If a user had the model repeat such a token,
        that reply must not open somebody else's turn in later prompts.
        """
        if not self._encoder.words:
            return frozenset()
        template = self._template
        question, prompt = template.try_render(ASKED), template.try_render(ASKED, generation_prompt=True)
        # Control tokens after a reply are headers; before it, a system prompt may explain `<think>`.
        behind = (template.try_render([*REPLIED, *ASKED]) or question or "").rpartition(REPLY)[2]
        answered = template.try_render(ANSWERED, template.probe_tools)
        tokens = [
            self._encoder.control_tokens(text or "") for text in (behind, question, prompt, template.called, answered)
        ]
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
