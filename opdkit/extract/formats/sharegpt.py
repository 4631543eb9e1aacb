"""ShareGPT: one conversation a line, `conversations` of `from` and `value`."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from opdkit.chat.conversation import JSON, Conversation, Unreadable
from opdkit.chat.messages import flatten, message, read_call, read_tools, refuse_too_many
from opdkit.extract.formats.json_lines import one_by_one
from opdkit.extract.formats.reader import Line, Reader, Rejected

KEYS = ("conversations", "conversation")
ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "function_call": "call",
    "tool_call": "call",
    "observation": "tool",
    "tool": "tool",
    "tool_response": "tool",
    "function_response": "tool",
}
_OWN_COLUMNS = frozenset(("model", "tools", "system"))


def recognises(record: JSON) -> bool:
    """A list of objects with `from` and `value`."""
    return _key(record) is not None


def _key(record: JSON) -> str | None:
    return next((key for key in KEYS if _is_chat(record.get(key))), None)


def _is_chat(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "from" in value[0]


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """One line, one conversation."""
    return one_by_one(unit, _conversation)


def _conversation(line: Line, record: JSON) -> Conversation:
    key = _key(record) or KEYS[0]
    items = record.get(key)
    if not isinstance(items, list) or not items:
        raise Unreadable("no messages", f"{key} is {'empty' if items == [] else 'a ' + type(items).__name__}")
    refuse_too_many(items)
    messages = [_message(item, i) for i, item in enumerate(items)]
    system = record.get("system")
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages.insert(0, message("system", system))
    model = record.get("model")
    return Conversation(
        line.source,
        line.number,
        messages,
        model=model if isinstance(model, str) and model else None,
        tools=read_tools(record.get("tools")),
        metadata={k: v for k, v in record.items() if k != key and k not in _OWN_COLUMNS},
    )


def _message(item: Any, index: int) -> JSON:
    try:
        role = ROLES[item["from"]]
    except (KeyError, TypeError):
        if isinstance(item, dict) and "from" in item:
            raise Unreadable("unknown role", f"message {index} is from {str(item['from'])[:100]!r}") from None
        raise Unreadable("message without a role", f"message {index} has no `from`") from None
    value = item.get("value")
    if role == "call":
        calls = _calls(value)
        # A call that cannot be read stays what it is, the text of a reply.
        return message("assistant", None, tool_calls=calls) if calls else message("assistant", _content(value))
    name = item.get("name")
    return message(role, _content(value), name=name if isinstance(name, str) and name else None)


def _content(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else flatten(value)


def _calls(value: Any) -> list[JSON]:
    """`{"name": ..., "arguments": ...}`, or a list of them, as text or as an object; [] for anything else."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return []
    try:
        return [read_call(call) for call in (value if isinstance(value, list) else [value])]
    except Unreadable:
        return []


READER = Reader("sharegpt", "line", recognises, read)
