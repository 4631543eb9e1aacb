"""OpenAI chat messages: one conversation a line, under `messages`, `traj`, `history` or `conversation(s)`."""

from collections.abc import Iterator, Sequence
from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import read_messages, read_tools
from opdkit.extract.formats.json_lines import one_by_one
from opdkit.extract.formats.reader import Line, Reader, Rejected

KEYS = ("messages", "traj", "history", "conversation", "conversations")
_OWN_COLUMNS = frozenset(("model", "tools", "functions", "choices"))


def recognises(record: JSON) -> bool:
    """A list of objects with a role, and not the reply apart from it."""
    return "response_text" not in record and _key(record) is not None


def _key(record: JSON) -> str | None:
    return next((key for key in KEYS if key in record and _is_chat(record[key])), None)


def _is_chat(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "role" in value[0]


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """One line, one conversation."""
    return one_by_one(unit, _conversation)


def _conversation(line: Line, record: JSON) -> Conversation:
    key = _key(record) or next((k for k in KEYS if k in record), None)
    if key is None:
        raise Unreadable("no messages", f"none of {', '.join(KEYS)} in the record")
    items = record[key]
    if not isinstance(items, list) or not items:
        raise Unreadable("no messages", f"{key} is {'empty' if items == [] else 'a ' + type(items).__name__}")
    choice = _choice(record)
    messages, notes = read_messages([*items, choice] if choice else items)
    if record.get("turn_type") == "side":
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                notes.setdefault(i, Note()).kind = "side"
    return Conversation(
        line.source,
        line.number,
        messages,
        model=_model(record, items),
        tools=read_tools(record.get("tools") or record.get("functions")),
        metadata={k: v for k, v in record.items() if k != key and k not in _OWN_COLUMNS},
        notes=notes,
    )


def _choice(record: JSON) -> JSON | None:
    """The reply of a logged API call, `choices[0]`, as a message that carries what was logged beside it."""
    choices = record.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    first: JSON = choices[0]
    message = first.get("message")
    if not isinstance(message, dict):
        return None
    return {"role": "assistant", **{k: v for k, v in first.items() if k != "message"}, **message}


def _model(record: JSON, items: list[Any]) -> str | None:
    if isinstance(record.get("model"), str):
        return record["model"] or None
    named = next((item["model"] for item in items if "model" in item), None)
    return named if isinstance(named, str) and named else None


READER = Reader("openai", "line", recognises, read)
