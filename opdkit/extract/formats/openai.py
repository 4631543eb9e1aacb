"""OpenAI chat messages: one conversation per line, under `messages`, `traj`, `history` or `conversation(s)`."""

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import first_choice, first_text, message_key, read_messages, read_tools, require_messages
from opdkit.extract.formats.reader import Line
from opdkit.extract.formats.sessions import line_reader
from opdkit.extract.mapping import value_at

KEYS = ("messages", "traj", "history", "conversation", "conversations")
_OWN_COLUMNS = frozenset(("model", "system", "tools", "functions", "choices"))
RESPONSES = ("response", "output", "result")  # fields that may hold the response of an API


def recognises(record: JSON) -> bool:
    """Return whether the record has a list of objects with a role, and not the reply apart from it."""
    return "response_text" not in record and message_key(record, KEYS) is not None


def read_record(line: Line, record: JSON) -> list[Conversation]:
    """Read one conversation. What was logged beside it is its first and last message: `system`, and a call's reply."""
    key = message_key(record, KEYS) or next((k for k in KEYS if k in record), None)
    if key is None:
        raise Unreadable("no messages", f"none of {', '.join(KEYS)} in the record")
    items = require_messages(record[key], key)
    system, holder = record.get("system"), holder_of_choices(record)
    opening = [{"role": "system", "content": system}] if system else []
    response = record[holder] if holder else {}
    messages, notes = read_messages([*opening, *items, *reply_of_choices(record)], first=-len(opening))
    if record.get("turn_type") == "side":
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                notes.setdefault(index, Note()).kind = "side"
    model = first_text(*(source.get("model") for source in (record, *record[key], response)))
    tools = read_tools(record.get("tools") or record.get("functions"))
    metadata = {k: v for k, v in record.items() if k != key and k not in _OWN_COLUMNS}
    if holder:
        metadata[holder] = {k: v for k, v in response.items() if k != "choices"}
    return [Conversation(line.source, line.number, messages, model, tools, metadata, notes)]


def holder_of_choices(record: JSON) -> str | None:
    """Return the field with the response whose choices hold the reply; None where the record has them, or none."""
    fields = (name for name in RESPONSES if value_at(record, (name, "choices", 0)))
    return None if "choices" in record else next(fields, None)


def reply_of_choices(record: JSON) -> list[JSON]:
    """Return the reply among the choices of a record or its response: a list of one logged message, or an empty one."""
    holder = holder_of_choices(record)
    choice = first_choice((record[holder] if holder else record).get("choices"))
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        return []
    logged_beside = {k: v for k, v in choice.items() if k != "message"}  # finish reason, log-probs
    return [{"role": "assistant", **logged_beside, **choice["message"]}]


READER = line_reader("openai", recognises, read_record)
