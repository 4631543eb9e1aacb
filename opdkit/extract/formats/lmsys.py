"""Rows of LMSYS-Chat-1M (one conversation each) and Chatbot Arena (the two conversations that a person compared).

Fields: https://huggingface.co/datasets/lmsys/lmsys-chat-1m and .../lmsys/chatbot_arena_conversations. Of the moderation
model's results, only `flagged` is kept.
"""

from opdkit.chat.conversation import JSON, Conversation
from opdkit.chat.messages import first_text, read_messages, require_list
from opdkit.extract.formats.reader import Line
from opdkit.extract.formats.sessions import line_reader

_LEFT_OUT = frozenset(("conversation", "conversation_a", "conversation_b", "model", "model_a", "model_b",
                       "openai_moderation"))  # fmt: skip
_WINNERS = {"model_a": "a", "a": "a", "model_b": "b", "b": "b"}


def recognises(record: JSON) -> bool:
    """Return whether the record has a conversation with LMSYS' id and notes, or two conversations of two models."""
    if isinstance(record.get("conversation_a"), list) and isinstance(record.get("conversation_b"), list):
        return True
    noted = any(key in record for key in ("openai_moderation", "redacted", "turn"))
    return noted and "conversation_id" in record and isinstance(record.get("conversation"), list)


def read_record(line: Line, record: JSON) -> list[Conversation]:
    """Read the conversation of a row, or the two that were compared."""
    moderation, winner = record.get("openai_moderation"), record.get("winner")
    verdicts = moderation if isinstance(moderation, list) else [moderation]
    flags = [v["flagged"] for v in verdicts if isinstance(v, dict) and isinstance(v.get("flagged"), bool)]
    won = _WINNERS.get(winner) if isinstance(winner, str) else None
    conversations = []
    for answer in "ab" if "conversation_a" in record or "conversation_b" in record else ("",):
        suffix = f"_{answer}" if answer else ""
        messages, notes = read_messages(require_list(record.get(f"conversation{suffix}"), f"conversation{suffix}"))
        metadata = {k: v for k, v in record.items() if k not in _LEFT_OUT}
        metadata |= {"answer": answer} if answer else {}
        metadata |= {"won": won == answer} if answer and won else {}
        metadata |= {"flagged": any(flags)} if flags else {}
        model = first_text(record.get(f"model{suffix}"))
        conversations.append(Conversation(line.source, line.number, messages, model, None, metadata, notes))
    return conversations


READER = line_reader("lmsys", recognises, read_record, closer_than=("openai",))
