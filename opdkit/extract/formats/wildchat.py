"""Rows of WildChat: one conversation per row, under `conversation`, with the language and the time of each message.

Fields: https://huggingface.co/datasets/allenai/WildChat-1M. The moderation models' scores, the hashed IP addresses and
the browsers' headers are left out; `toxic`, `redacted`, `language`, `country` and `timestamp` are in the metadata.
"""

from opdkit.chat.conversation import JSON, Conversation
from opdkit.chat.messages import first_text, read_messages, require_list
from opdkit.extract.formats.reader import Line
from opdkit.extract.formats.sessions import line_reader

_LEFT_OUT = frozenset(("conversation", "model", "openai_moderation", "detoxify_moderation", "hashed_ip", "header"))


def recognises(record: JSON) -> bool:
    """Return whether the record has a conversation and its hash."""
    return "conversation_hash" in record and isinstance(record.get("conversation"), list)


def read_record(line: Line, record: JSON) -> list[Conversation]:
    messages, notes = read_messages(require_list(record.get("conversation"), "conversation"))
    metadata = {k: v for k, v in record.items() if k not in _LEFT_OUT}
    model = first_text(record.get("model"))
    return [Conversation(line.source, line.number, messages, model=model, metadata=metadata, notes=notes)]


READER = line_reader("wildchat", recognises, read_record, closer_than=("openai",))
