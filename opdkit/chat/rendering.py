"""Chat template of a tokenizer: messages to text. The texts of the messages get breaks (control_tokens.py)."""

import datetime
import inspect
import re
from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from opdkit.chat.control_tokens import ChatError, Encoder
from opdkit.chat.openai_messages import Message, openai_message, read_tool_definitions
from opdkit.console import warn
from opdkit.errors import ConfigError

# Date for templates that ask for today's, so that prompts stay the same from day to day: Llama 3's own fallback.
TEMPLATE_DATE = datetime.date(2024, 7, 26)
_TODAY = re.compile(r"""strftime_now\(\s*(?P<quote>['"])(?P<format>.*?)(?P=quote)\s*\)""")

# Messages to probe a template with: a question, a text or a call in reply, and the call's result.
ASKED: list[Message] = [{"role": "user", "content": "?"}]
REPLY = "opdkit's probe"
REPLIED = [*ASKED, {"role": "assistant", "content": REPLY}]
_CALL = {"id": "call00000", "name": "probe", "arguments": '{"opdkit": 1}'}
CALLED = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [_CALL]}]
RESULT = "opdkit's result"
ANSWERED = [*CALLED, {"role": "tool", "content": RESULT, "name": "probe", "tool_call_id": _CALL["id"]}]
_TOOLS = '[{"name": "opdkit", "description": "", "parameters": {"type": "object", "properties": {}}}]'
_LONG_ID = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [_CALL | {"id": "call-of-a-server"}]}]


class ChatTemplate:
    """Chat template of one tokenizer, with its arguments.

    A template that asks for today's date gets `TEMPLATE_DATE`; a user may set the argument `date_string` if the
    template reads it. `probe_tools` are the tools of probes with calls: some tokenizers (Hermes 3, Command R) have
    another template for requests with tools. `called` is what the template renders for `CALLED`; None if it refuses
    the call. Raises ConfigError for a tokenizer without a template and for arguments
    that would replace opdkit's own.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, args: Mapping[str, Any], encoder: Encoder) -> None:
        self.encoder = encoder
        self._tokenizer, self._args = tokenizer, dict(args)
        self._check()
        self.probe_tools = _TOOLS if isinstance(tokenizer.chat_template, dict) else None
        # Most templates take the arguments of a call as an object, DeepSeek's as text.
        self._arguments_as_text = self._short_ids = False
        self.called = self.try_render(CALLED, self.probe_tools)
        if self.called is None or "{'opdkit': 1}" in self.called:  # printed as a Python dict, which is not JSON
            self._arguments_as_text = True
            as_text = self.try_render(CALLED, self.probe_tools)
            self._arguments_as_text, self.called = as_text is not None, as_text or self.called
        # Mistral's templates take ids of nine letters and digits only; servers of these models shorten longer ones.
        self._short_ids = self.called is not None and self.try_render(_LONG_ID, self.probe_tools) is None

    def render(self, messages: list[Message], tools: str | None, *, generation_prompt: bool) -> str:
        """Return what the template renders for these messages, with breaks in their texts. Raises ChatError."""
        if not messages:
            raise ChatError("no prompt")
        try:
            definitions = self.encoder.as_data(read_tool_definitions(tools), sampled=False)
            as_data = []
            for message in messages:
                fields = openai_message(message, arguments_as_text=self._arguments_as_text, short_ids=self._short_ids)
                role = fields.pop("role")
                as_data.append({"role": role, **self.encoder.as_data(fields, sampled=role == "assistant")})
            return self._tokenizer.apply_chat_template(
                as_data,
                tools=definitions,
                chat_template=_fix_date(self._tokenizer.get_chat_template(None, definitions)),
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self._args,
            )
        except (TemplateError, TypeError, ValueError, KeyError, RecursionError) as error:
            raise ChatError(f"template: {' '.join(str(error).split())[:120]}") from error

    def try_render(
        self, messages: list[Message], tools: str | None = None, *, generation_prompt: bool = False
    ) -> str | None:
        """Return what the template renders for these messages; None if it refuses them."""
        try:
            return self.render(messages, tools, generation_prompt=generation_prompt)
        except ChatError:
            return None

    def _check(self) -> None:
        """Raise ConfigError for an unusable template or arguments that opdkit sets; warn of arguments it ignores."""
        templates = self._tokenizer.chat_template
        where = self._tokenizer.name_or_path
        if not templates:
            raise ConfigError(f"the tokenizer of {where} has no chat template; use the model's chat (instruct) version")
        text = "\n".join(templates.values()) if isinstance(templates, dict) else templates
        own = inspect.signature(self._tokenizer.apply_chat_template).parameters.keys() | {"messages"}
        for name in self._args:
            if name in own:
                raise ConfigError(f"--template-arg {name}: opdkit sets this itself; pass only the template's own")
            if not re.search(rf"\b{re.escape(name)}\b", text):
                warn(f"--template-arg {name}: the chat template of {where} does not read it")
        if "strftime_now(" in _fix_date(text):
            raise ConfigError(f"the chat template of {where} writes today's date in a format that it computes, so that "
                              "tomorrow's prompts would differ; write the date into the template")  # fmt: skip


def _fix_date(template: str) -> str:
    return _TODAY.sub(lambda call: repr(TEMPLATE_DATE.strftime(call["format"])), template)
