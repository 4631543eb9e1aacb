"""Messages to token ids: prompts, replies, and where the hint goes.

Messages are rows of the `sessions` table. A prompt is what the chat template renders for the messages before a reply,
with the generation prompt; a reply is what it renders after that, encoded on its own. The two are never one string.
"""

import datetime
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from opdkit.chat.control_tokens import Encoder, UnsafeTextError, any_of
from opdkit.chat.finish_reasons import is_cut_off
from opdkit.chat.openai_form import HINT_HEADER, Message, openai_message, tool_definitions
from opdkit.console import warn
from opdkit.errors import ConfigError, OpdkitError

# What templates that ask for today's date are told, so that tomorrow renders the same: Llama 3's own fallback.
TEMPLATE_DATE = datetime.date(2024, 7, 26)

_NOT_A_PREFIX = "reply does not continue the prompt"
_EMPTY_THINKING = re.compile(r"\s*(?:<think>)?\s*</think>\s*")
_TODAY = re.compile(r"""strftime_now\(\s*(?P<quote>['"])(?P<format>.*?)(?P=quote)\s*\)""")


class ChatError(OpdkitError):
    """These messages cannot be turned into token ids. `reason` is the word the turn is dropped and counted under."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Reply:
    """The tokens of one reply, and which of them the policy really sampled (the others are not trained)."""

    ids: list[int]
    mask: list[bool]


@dataclass(frozen=True)
class Prompt:
    """A prompt that fits: its token ids, and how many messages were cut off its beginning."""

    ids: list[int]
    cut: int


class Chat:
    """One tokenizer's chat template with its arguments.

    `stop_ids` are the tokens that end a reply: the tokenizer's end token, those of the generation configuration
    (`eos_ids`), and the one that the template itself writes after a reply.

    A template that asks for today's date gets `TEMPLATE_DATE`; the argument `date_string`, where the template reads
    it, is the user's to set. Raises ConfigError for a tokenizer without a template and for arguments that would
    replace opdkit's own.
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
        self._arguments_as_text = False
        self._arguments_as_text = not self._renders_a_call() and self._renders_a_call(as_text=True)
        self._encoder.break_always(self._headers())
        given = [eos_ids] if isinstance(eos_ids, int) else list(eos_ids or ())
        self.stop_ids = frozenset(i for i in [tokenizer.eos_token_id, *given] if i is not None)
        self.stop_ids |= self._template_stop_ids()
        added = tokenizer.added_tokens_decoder
        self._stop = re.compile(any_of([added[i].content for i in self.stop_ids if i in added]) or "(?!)")

    def prompt_ids(self, messages: list[Message], tools: str | None = None) -> list[int]:
        """Token ids of the messages with the generation prompt. Raises ChatError."""
        return self._ids(self._render(messages, tools, generation_prompt=True))

    def reply(
        self,
        messages: list[Message],
        index: int,
        tools: str | None = None,
        finish_reason: str | None = None,
        token_ids: list[int] | None = None,
    ) -> Reply:
        """The tokens of the assistant message at `index`, exactly as they follow `prompt_ids(messages[:index])`.

        The logged `token_ids` where there are any; else what the template renders after the prompt, up to and with
        the stop token. A reply that was cut off (`finish_reason`) ends where its text ends: the closing tags and the
        stop token that a template adds were never sampled. An empty think block that the template makes up is masked.
        Raises ChatError when the template's rendering of the conversation does not begin with the prompt.
        """
        if token_ids is not None:
            return Reply(list(token_ids), [True] * len(token_ids))
        message = messages[index]
        prompt = self._render(messages[:index], tools, generation_prompt=True)
        whole = self._render(messages[: index + 1], tools, generation_prompt=False)
        if not whole.startswith(prompt):
            raise ChatError(_NOT_A_PREFIX)
        rendered = whole[len(prompt) :]
        invented = "" if _has_reasoning(message) else _leading(_EMPTY_THINKING, rendered)
        rendered = self._sampled(rendered[len(invented) :], message, is_cut_off(finish_reason))
        masked, sampled = self._continuation(invented), self._continuation(rendered)
        return Reply(masked + sampled, [False] * len(masked) + [True] * len(sampled))

    def text(self, ids: Iterable[int]) -> str:
        """The ids as people read them, control tokens included."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def opens_thinking(self, prompt_ids: list[int]) -> bool:
        """Whether a prompt ends with an open think block, as templates of reasoning models write it."""
        return self.text(prompt_ids[-8:]).rstrip().endswith("<think>")

    # -- rendering --------------------------------------------------------------------------------------------------

    def _render(self, messages: list[Message], tools: str | None, *, generation_prompt: bool) -> str:
        if not messages:
            raise ChatError("no prompt")
        try:
            definitions = self._encoder.as_data(tool_definitions(tools), sampled=False)
            template = self.tokenizer.get_chat_template(None, definitions)
            text: str = self.tokenizer.apply_chat_template(
                [self._for_template(m) for m in messages],
                tools=definitions,
                chat_template=_with_fixed_date(template),
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self.template_args,
            )
        except UnsafeTextError as error:
            raise ChatError(str(error)) from error
        except (TemplateError, TypeError, ValueError, KeyError, RecursionError) as error:
            raise ChatError(f"template: {' '.join(str(error).split())[:120]}") from error
        return text

    def _for_template(self, message: Message) -> Message:
        """The message as templates expect it, its text as data."""
        fields = openai_message(message, arguments_as_text=self._arguments_as_text)
        role = fields.pop("role")
        return {"role": role, **self._encoder.as_data(fields, sampled=role == "assistant")}

    def _ids(self, rendered: str) -> list[int]:
        try:
            return self._encoder.ids(rendered)
        except UnsafeTextError as error:
            raise ChatError(str(error)) from error

    def _continuation(self, rendered: str) -> list[int]:
        try:
            return self._encoder.continuation_ids(rendered) if rendered else []
        except UnsafeTextError as error:
            raise ChatError(str(error)) from error

    # -- what was sampled -------------------------------------------------------------------------------------------

    def _sampled(self, rendered: str, message: Message, cut_off: bool) -> str:
        """The part of a rendered reply that the policy wrote: up to and with the stop token, or where it was cut off.

        What a message holds cannot be a stop token here, so the first one is the template's.
        """
        stop = self._stop.search(rendered)
        if not cut_off:
            return rendered[: stop.end()] if stop else rendered.rstrip()
        text = rendered[: stop.start()] if stop else rendered
        last = self._encoder.as_data(_last_logged(message), sampled=True)
        start = text.rfind(last) if last else 0
        if start < 0:
            raise ChatError("the end of a cut-off reply is not in its rendering")
        return text[: start + len(last)]

    # -- checks at construction -------------------------------------------------------------------------------------

    def _check_template(self) -> None:
        templates = self.tokenizer.chat_template
        where = self.tokenizer.name_or_path
        if not templates:
            raise ConfigError(f"the tokenizer of {where} has no chat template; use the model's chat (instruct) version")
        text = "\n".join(templates.values()) if isinstance(templates, dict) else templates
        own = inspect.signature(self.tokenizer.apply_chat_template).parameters.keys() | {"messages"}
        for name in self.template_args:
            if name in own:
                raise ConfigError(f"--template-arg {name}: opdkit itself sets this; only the template's own go there")
            if not re.search(rf"\b{re.escape(name)}\b", text):
                warn(f"--template-arg {name}: the chat template of {where} does not read it")
        if "strftime_now(" in _with_fixed_date(text):
            raise ConfigError(
                f"the chat template of {where} writes today's date in a format that it computes, so that "
                "tomorrow's prompts would differ; write the date into the template"
            )

    def _renders_a_call(self, *, as_text: bool = False) -> bool:
        """Whether the template takes a call's arguments as an object, as most do, or as their text, as DeepSeek's."""
        call = {"id": "call-0", "name": "probe", "arguments": '{"opdkit": 1}'}
        said: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
        before, self._arguments_as_text = self._arguments_as_text, as_text
        try:
            self._render([{"role": "user", "content": "?"}, said], None, generation_prompt=False)
        except ChatError:
            return False
        finally:
            self._arguments_as_text = before
        return True

    def _headers(self) -> set[str]:
        """Control tokens that say who speaks, or hold a tool's result, but are not special in this vocabulary.

        DeepSeek's `<｜User｜>` and Qwen's `<tool_response>` are such. A reply that holds one, because a user had the
        model repeat it, must not open a turn of somebody else in the prompts after it.
        """
        call = {"id": "call-0", "name": "probe", "arguments": '{"opdkit": 1}'}
        asked: Message = {"role": "user", "content": "?"}
        called: list[Message] = [asked, {"role": "assistant", "content": None, "tool_calls": [call]}]
        answered = [*called, {"role": "tool", "content": "opdkit", "name": "probe", "tool_call_id": "call-0"}]
        before, prompt = self._words([asked]), self._words([asked], generation_prompt=True)
        # What a generation prompt writes after its header, such as `<think>`, opens the reply itself.
        headers = {*before, *prompt[len(before) :][:1]}
        return headers | set(Counter(self._words(answered)) - Counter(self._words(called)))

    def _words(self, messages: list[Message], *, generation_prompt: bool = False) -> list[str]:
        """The control tokens, not special, that the template writes for these messages; [] where it refuses them."""
        if not self._encoder.words:
            return []
        try:
            rendered = self._render(messages, None, generation_prompt=generation_prompt)
        except ChatError:
            return []
        return re.findall(any_of(self._encoder.words), rendered)

    def _template_stop_ids(self) -> frozenset[int]:
        """The special token right after a reply's text, as the template writes it."""
        question, probe = {"role": "user", "content": "?"}, "opdkit's probe"
        try:
            whole = self._render([question, {"role": "assistant", "content": probe}], None, generation_prompt=False)
        except ChatError:  # a template may demand more than a question; then the configured stop tokens must do
            return frozenset()
        special = {i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        after = self._continuation(whole[whole.rfind(probe) + len(probe) :])
        return frozenset([i for i in after if i in special][:1])


def _with_fixed_date(template: str) -> str:
    return _TODAY.sub(lambda call: repr(TEMPLATE_DATE.strftime(call["format"])), template)


def _has_reasoning(message: Message) -> bool:
    return bool((message.get("reasoning") or "").strip()) or "</think>" in (message["content"] or "")


def _leading(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.match(text)
    return match[0] if match else ""


def _last_logged(message: Message) -> str:
    """The last non-empty thing in a message, in the order in which it was sampled: thinking, text, calls."""
    if message.get("tool_calls"):
        call = message["tool_calls"][-1]
        return (call["arguments"] or call["name"]).strip()
    for key in ("content", "reasoning"):
        if text := (message.get(key) or "").strip():
            return text
    return ""


# -- the hint -------------------------------------------------------------------------------------------------------


def with_hint(messages: list[Message], hint: str, placement: str) -> list[Message]:
    """The prompt with the hint in it; `messages` stay as they are.

    `last-user`: at the end of the last user message. `tail`: at the end of the last message. `system`: at the end of
    the system message, which is made where there is none. Raises ChatError where there is no such message.
    """
    if placement == "system" and not any(m["role"] == "system" for m in messages):
        return [{"role": "system", "content": f"{HINT_HEADER}\n{hint}"}, *messages]
    index = _hint_index(messages, placement)
    before = f"{messages[index]['content']}\n\n" if messages[index]["content"] else ""
    hinted = messages[index] | {"content": f"{before}{HINT_HEADER}\n{hint}"}
    return [*messages[:index], hinted, *messages[index + 1 :]]


def _hint_index(messages: list[Message], placement: str) -> int:
    roles = [m["role"] for m in messages]
    if placement == "system":
        return roles.index("system")
    if placement == "tail":
        if not roles or roles[-1] == "assistant":
            raise ChatError("no message for the hint")
        return len(roles) - 1
    if "user" not in roles:
        raise ChatError("no user message")
    return len(roles) - 1 - roles[::-1].index("user")


# -- what fits ------------------------------------------------------------------------------------------------------


def fit(chat: Chat, messages: list[Message], tools: str | None, budget: int, too_long: str) -> Prompt:
    """The prompt's ids within `budget` tokens. Raises ChatError("too long") where that cannot be.

    `too_long` "cut" takes whole messages off the beginning until it fits. System messages stay. What remains begins
    with a user message, so that no tool result is left without its call, and the last user message (with it the hint)
    is never cut.
    """
    ids = chat.prompt_ids(messages, tools)
    if len(ids) <= budget:
        return Prompt(ids, 0)
    counts = _cut_points(messages) if too_long == "cut" else []
    low, high = 0, len(counts)
    fitting = None
    while low < high:  # the fewest messages cut: fewer messages are fewer tokens
        middle = (low + high) // 2
        ids = chat.prompt_ids(without_first(messages, counts[middle]), tools)
        if len(ids) <= budget:
            fitting, high = Prompt(ids, counts[middle]), middle
        else:
            low = middle + 1
    if fitting is None:
        raise ChatError("too long")
    return fitting


def without_first(messages: list[Message], count: int) -> list[Message]:
    """`messages` without the first `count` of those that are no system messages."""
    kept, left = [], count
    for message in messages:
        if left and message["role"] != "system":
            left -= 1
        else:
            kept.append(message)
    return kept


def _cut_points(messages: list[Message]) -> list[int]:
    """How many messages can be cut off, system messages apart, so that the rest begins with a user message."""
    others = [m["role"] for m in messages if m["role"] != "system"]
    return [n for n, role in enumerate(others) if n and role == "user"]
