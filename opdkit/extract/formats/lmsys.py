"""Rows of LMSYS-Chat-1M, and of the Chatbot Arena: one conversation a row, or the two that a person compared.

Fields: https://huggingface.co/datasets/lmsys/lmsys-chat-1m and .../lmsys/chatbot_arena_conversations. Of a comparison
both conversations are told, each with its own model; the metadata say which one it is (`answer`: a or b), `winner`,
and `won` where the person decided. The scores of the moderation model become `flagged`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Unreadable
from opdkit.chat.messages import read_messages
from opdkit.extract.formats.json_lines import parse
from opdkit.extract.formats.reader import Line, Reader, Rejected, rejected

_LEFT_OUT = frozenset(("conversation", "conversation_a", "conversation_b", "model", "model_a", "model_b",
                       "openai_moderation"))  # fmt: skip
_BESIDE = ("openai_moderation", "redacted", "turn")
_WINNERS = {"model_a": "a", "a": "a", "model_b": "b", "b": "b"}


def recognises(record: JSON) -> bool:
    """A conversation with its id and what LMSYS notes of it, or two of two models."""
    if isinstance(record.get("conversation_a"), list) and isinstance(record.get("conversation_b"), list):
        return True
    return "conversation_id" in record and isinstance(record.get("conversation"), list) and any(
        key in record for key in _BESIDE)  # fmt: skip


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """One line, one or two conversations."""
    for line in unit:
        try:
            yield from _conversations(line, parse(line))
        except Unreadable as why:
            yield rejected(line, why)


def _conversations(line: Line, record: JSON) -> list[Conversation]:
    if "conversation_a" in record or "conversation_b" in record:
        return [_conversation(line, record, f"_{answer}", _of_answer(record, answer)) for answer in "ab"]
    return [_conversation(line, record, "", {})]


def _conversation(line: Line, record: JSON, suffix: str, more: JSON) -> Conversation:
    items = record.get(f"conversation{suffix}")
    if not isinstance(items, list) or not items:
        found = "empty" if items == [] else f"a {type(items).__name__}"
        raise Unreadable("no messages", f"conversation{suffix} is {found}")
    messages, notes = read_messages(items)
    metadata = {k: v for k, v in record.items() if k not in _LEFT_OUT} | more
    flagged = _flagged(record.get("openai_moderation"))
    if flagged is not None:
        metadata["flagged"] = flagged
    model = record.get(f"model{suffix}")
    known = model if isinstance(model, str) and model else None
    return Conversation(line.source, line.number, messages, model=known, metadata=metadata, notes=notes)


def _of_answer(record: JSON, answer: str) -> JSON:
    winner = record.get("winner")
    won = _WINNERS.get(winner) if isinstance(winner, str) else None
    return {"answer": answer} | ({"won": won == answer} if won else {})


def _flagged(moderation: Any) -> bool | None:
    """Whether any message was flagged; None where nothing says so."""
    verdicts = moderation if isinstance(moderation, list) else [moderation]
    found = [v["flagged"] for v in verdicts if isinstance(v, dict) and isinstance(v.get("flagged"), bool)]
    return any(found) if found else None


READER = Reader("lmsys", "line", recognises, read, closer_than="openai")
