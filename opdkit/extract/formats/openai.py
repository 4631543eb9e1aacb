"""OpenAI chat messages: one conversation per line, under `messages`, `traj`, `history` or `conversation(s)`."""

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import first_text, message_key, read_messages, read_tools, require_messages
from opdkit.extract.formats.reader import Line
from opdkit.extract.formats.sessions import line_reader
from opdkit.extract.mapping import value_at

KEYS = ("messages", "traj", "history", "conversation", "conversations")
_OWN_COLUMNS = frozenset(("model", "tools", "functions", "choices"))
_RESPONSES = ("response", "output", "result")  # fields that may hold the response of an API


def recognises(record: JSON) -> bool:
    """Return whether the record has a list of objects with a role, and not the reply apart from it."""
    return "response_text" not in record and message_key(record, KEYS) is not None


def read_record(line: Line, record: JSON) -> list[Conversation]:
    """Read one conversation. The reply of an API call logged beside it (`choices[0]`) is its last message."""
    key = message_key(record, KEYS) or next((k for k in KEYS if k in record), None)
    if key is None:
        raise Unreadable("no messages", f"none of {', '.join(KEYS)} in the record")
    items = require_messages(record[key], key)
    holder = next((name for name in _RESPONSES if value_at(record, (name, "choices", 0))), None)
    response = record[holder] if holder and "choices" not in record else {}
    choice = value_at(record, ("choices", 0)) or value_at(response, ("choices", 0))
    if isinstance(choice, dict) and isinstance(choice.get("message"), dict):
        logged_beside = {k: v for k, v in choice.items() if k != "message"}  # finish reason, log-probs
        items = [*items, {"role": "assistant", **logged_beside, **choice["message"]}]
    messages, notes = read_messages(items)
    if record.get("turn_type") == "side":
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                notes.setdefault(index, Note()).kind = "side"
    model = first_text(*(source.get("model") for source in (record, *record[key], response)))
    tools = read_tools(record.get("tools") or record.get("functions"))
    metadata = {k: v for k, v in record.items() if k != key and k not in _OWN_COLUMNS}
    if holder and response:
        metadata[holder] = {k: v for k, v in response.items() if k != "choices"}
    return [Conversation(line.source, line.number, messages, model, tools, metadata, notes)]


READER = line_reader("openai", recognises, read_record)
