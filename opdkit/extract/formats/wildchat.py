"""Rows of WildChat: one conversation a row, under `conversation`, with the language and the time of each message.

Fields: https://huggingface.co/datasets/allenai/WildChat-1M. The scores of the moderation models, the addresses (hashed)
and the browser's headers are left out; `toxic`, `redacted`, `language`, `country` and `timestamp` are in the metadata.
"""

from collections.abc import Iterator, Sequence

from opdkit.chat.conversation import JSON, Conversation, Unreadable
from opdkit.chat.messages import read_messages
from opdkit.extract.formats.json_lines import one_by_one
from opdkit.extract.formats.reader import Line, Reader, Rejected

_LEFT_OUT = frozenset(("conversation", "model", "openai_moderation", "detoxify_moderation", "hashed_ip", "header"))


def recognises(record: JSON) -> bool:
    """A conversation with its hash."""
    return "conversation_hash" in record and isinstance(record.get("conversation"), list)


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """One line, one conversation."""
    return one_by_one(unit, _conversation)


def _conversation(line: Line, record: JSON) -> Conversation:
    items = record.get("conversation")
    if not isinstance(items, list) or not items:
        raise Unreadable("no messages", f"conversation is {'empty' if items == [] else 'a ' + type(items).__name__}")
    messages, notes = read_messages(items)
    model = record.get("model")
    return Conversation(
        line.source,
        line.number,
        messages,
        model=model if isinstance(model, str) and model else None,
        metadata={k: v for k, v in record.items() if k not in _LEFT_OUT},
        notes=notes,
    )


READER = Reader("wildchat", "line", recognises, read, closer_than="openai")
