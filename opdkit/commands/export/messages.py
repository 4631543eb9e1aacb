"""Prompts and replies as trainers take them: OpenAI's form, as opdkit's own prompts are rendered from.

A trainer encodes the rendered text as a whole. Text of a log that looks like a template's control tokens would become
control tokens there, and forge a turn; opdkit can tell them apart when it encodes itself, an export cannot. So such
turns are not exported.
"""

import contextlib
import json
import math
from typing import Any, NoReturn

from opdkit.chat.control_tokens import has_control_tokens
from opdkit.chat.finish_reasons import is_cut_off
from opdkit.chat.openai_form import Message, openai_message, tool_definitions
from opdkit.commands.export.turns import JudgedTurn, NotExportedError


def prompt_of(turn: JudgedTurn) -> list[Message]:
    """All messages before the reply. Raises NotExportedError."""
    if not turn.index:
        raise NotExportedError("no prompt")
    return [_exported(message) for message in turn.session["messages"][: turn.index]]


def completion_of(turn: JudgedTurn) -> list[Message]:
    """The reply, as a list of one. Raises NotExportedError.

    A reply that the token limit ended is none: a trainer would teach that it ends there.
    """
    if is_cut_off(turn.turn["finish_reason"]):
        raise NotExportedError("reply cut off")
    return [_exported(turn.session["messages"][turn.index])]


def refuse_control_tokens(text: str) -> None:
    """Raise NotExportedError for text that a tokenizer would read as the control tokens of a chat template."""
    if has_control_tokens(text):
        raise NotExportedError("control tokens in the text")


def tools_of(turn: JudgedTurn) -> str | None:
    """The session's tool definitions as JSON in OpenAI's wrapped form; null where there are none."""
    definitions = tool_definitions(turn.session["tools"])
    return dumped(definitions) if definitions else None


def dumped(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _exported(message: Message) -> Message:
    refuse_control_tokens("\n".join(_texts(message)))
    for call in message["tool_calls"]:
        _check_numbers(call["arguments"])
    return openai_message(message)


def _texts(message: Message) -> list[str]:
    calls = [call[key] for call in message["tool_calls"] for key in ("name", "arguments")]
    return [message[key] or "" for key in ("content", "reasoning", "name")] + calls


def _check_numbers(arguments: str) -> None:
    """Raise NotExportedError for a number that strict JSON or a reader with 64-bit integers does not take."""
    with contextlib.suppress(ValueError, RecursionError):  # no JSON: it stays text
        json.loads(arguments, parse_constant=_refuse, parse_int=_int64, parse_float=_finite)


def _refuse(text: str) -> NoReturn:
    raise NotExportedError("a number in a tool call that JSON readers refuse")


def _int64(text: str) -> int:
    return number if len(text) < 20 and -(2**63) <= (number := int(text)) < 2**63 else _refuse(text)


def _finite(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _refuse(text)
