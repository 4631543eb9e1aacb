"""OpenAI chat messages: one conversation per line, under `messages`, `traj`, `history` or `conversation(s)`."""

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import first_text, message_key, read_messages, read_tools, require_messages
from opdkit.extract.formats.reader import Line
from opdkit.extract.formats.sessions import line_reader

KEYS = ("messages", "traj", "history", "conversation", "conversations")
_OWN_COLUMNS = frozenset(("model", "tools", "functions", "choices"))


def recognises(record: JSON) -> bool:
    """Return whether the record has a list of objects with a role, and not the reply apart from it."""
    return "response_text" not in record and message_key(record, KEYS) is not None


def read_record(line: Line, record: JSON) -> list[Conversation]:
    """Read one conversation. A reply logged beside it, as an API call has it (`choices[0]`), is its last message."""
    key = message_key(record, KEYS) or next((k for k in KEYS if k in record), None)
    if key is None:
        raise Unreadable("no messages", f"none of {', '.join(KEYS)} in the record")
    items = require_messages(record[key], key)
    choices = record.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if isinstance(choice, dict) and isinstance(choice.get("message"), dict):
        logged_beside = {k: v for k, v in choice.items() if k != "message"}  # finish reason, log-probs
        items = [*items, {"role": "assistant", **logged_beside, **choice["message"]}]
    messages, notes = read_messages(items)
    if record.get("turn_type") == "side":
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                notes.setdefault(index, Note()).kind = "side"
    model = record.get("model")
    if not isinstance(model, str):
        model = next((item["model"] for item in record[key] if "model" in item), None)
    tools = read_tools(record.get("tools") or record.get("functions"))
    metadata = {k: v for k, v in record.items() if k != key and k not in _OWN_COLUMNS}
    return [Conversation(line.source, line.number, messages, first_text(model), tools, metadata, notes)]


READER = line_reader("openai", recognises, read_record)
