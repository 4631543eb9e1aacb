"""ShareGPT: one conversation per line, a list `conversations` of objects with `from` and `value`."""

from typing import Any

import orjson

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import (
    NOT_ONLY_TEXT,
    find_key,
    first_text,
    has_placeholder,
    join_content,
    message,
    read_call,
    read_tools,
    require_list,
)
from opdkit.extract.formats.reader import Line
from opdkit.extract.formats.sessions import line_reader

KEYS = ("conversations", "conversation")
ROLES = {
    "system": "system",
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt"), "assistant"),
    **dict.fromkeys(("function_call", "tool_call"), "call"),
    **dict.fromkeys(("observation", "tool", "tool_response", "function_response"), "tool"),
}
_OWN_COLUMNS = frozenset(("model", "tools", "system"))


def recognises(record: JSON) -> bool:
    """Return whether the record has a list of objects with `from`."""
    return find_key(record, KEYS, "from") is not None


def read_record(line: Line, record: JSON) -> list[Conversation]:
    """Read one conversation. The system prompt may be a field of its own. Raises Unreadable."""
    key = find_key(record, KEYS, "from") or KEYS[0]
    items = require_list(record.get(key), key)
    messages = [_read_message(item, index) for index, item in enumerate(items)]
    system = first_text(record.get("system"))
    if system and messages[0]["role"] != "system":
        messages.insert(0, message("system", system))
    # Calls may also have a list of objects as their value; calls are recognised by content None.
    notes = {
        index: Note(skip_reason=NOT_ONLY_TEXT)
        for index, item in enumerate(items, len(messages) - len(items))
        if messages[index]["role"] == "assistant" and messages[index]["content"] and has_placeholder(item.get("value"))
    }
    model, tools = first_text(record.get("model")), read_tools(record.get("tools"))
    metadata = {k: v for k, v in record.items() if k != key and k not in _OWN_COLUMNS}
    return [Conversation(line.source, line.number, messages, model, tools, metadata, notes)]


def _read_message(item: Any, index: int) -> JSON:
    if not isinstance(item, dict) or "from" not in item:
        raise Unreadable("message without a role", f"message {index} has no `from`")
    role = ROLES.get(item["from"]) if isinstance(item["from"], str) else None
    if role is None:
        raise Unreadable("unknown role", f"message {index} is from {str(item['from'])[:100]!r}")
    value = item.get("value")
    if role != "call":
        return message(role, join_content(value), name=first_text(item.get("name")))
    # `{"name": ..., "arguments": ...}`, or a list of them, as text or as objects.
    try:
        calls = orjson.loads(value) if isinstance(value, str) else value
        read = [read_call(call) for call in (calls if isinstance(calls, list) else [calls])]
    except (orjson.JSONDecodeError, Unreadable):
        read = []
    # A call that cannot be parsed is kept as the text of a reply.
    return message("assistant", None, tool_calls=read) if read else message("assistant", join_content(value))


READER = line_reader("sharegpt", recognises, read_record)
