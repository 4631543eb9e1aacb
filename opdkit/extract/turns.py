"""Turns: one row per logged reply, with its next state, and whether it may be judged and trained on."""

from itertools import pairwise
from typing import NamedTuple

from opdkit.chat.conversation import JSON, Conversation, Note
from opdkit.chat.finish_reasons import is_cut_off
from opdkit.chat.messages import PLACEHOLDERS
from opdkit.store.skip_reasons import DUPLICATE, EMPTY, NO_NEXT, NO_USER, RETRY, SIDE, TRUNCATED
from opdkit.store.turn_ids import turn_id

_NO_NOTE = Note()
_REACTIONS = ("comment", "edited", "kept")  # fields of a decision that a judge reads like a next state


class TurnRow(NamedTuple):
    """Row of tables.TURNS: the columns in their order."""

    turn_id: str
    session_id: str
    message_index: int
    next_count: int
    next_role: str | None
    kind: str
    trainable: bool
    skip_reason: str | None
    finish_reason: str | None
    response_token_ids: list[int] | None
    behavior_logprobs: list[float] | None
    decision: JSON | None


def turns(session_id: str, conversation: Conversation, *, side: bool = False) -> list[TurnRow]:
    """Return the row of each reply of a conversation, in order.

    The next state of a turn is every message after it up to the next assistant message. If two assistant messages are
    adjacent, the first has none. With `side` (--side), turns outside the conversation with the user are trainable, too.
    """
    messages = conversation.messages
    replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    rows: list[TurnRow] = []
    request: JSON | None = None  # the last user message before the reply
    start = 0
    for reply, stop in pairwise([*replies, len(messages)]):
        request = next((message for message in reversed(messages[start:reply]) if message["role"] == "user"), request)
        # The first message of the next state that may be a reaction: a system message is not.
        reaction = next((i for i in range(reply + 1, stop) if messages[i]["role"] != "system"), None)
        note = conversation.notes.get(reply, _NO_NOTE)
        skip = note.skip_reason or (SIDE if note.kind == "side" and not side else None)
        skip = skip or _skip_reason(conversation, reply, request, reaction)
        rows.append(TurnRow(
            turn_id=turn_id(session_id, reply),
            session_id=session_id,
            message_index=reply,
            next_count=stop - reply - 1,
            next_role=None if reaction is None else messages[reaction]["role"],
            kind=note.kind,
            trainable=skip is None,
            skip_reason=skip,
            finish_reason=note.finish_reason,
            response_token_ids=note.token_ids,
            behavior_logprobs=note.logprobs,
            decision=note.decision,
        ))  # fmt: skip
        start = reply
    return rows


def is_decided(decision: JSON | None) -> bool:
    """Return whether a decision rates a reply, or has words on it."""
    return decision is not None and (decision["rating"] is not None or any(map(decision.get, _REACTIONS)))


def _skip_reason(conversation: Conversation, index: int, request: JSON | None, reaction: int | None) -> str | None:
    """Return why the reply at `index` is not trainable; None if it is. `reaction`: index of the reaction to it."""
    messages, note = conversation.messages, conversation.notes.get(index, _NO_NOTE)
    reply = messages[index]
    content = reply["content"]
    if not reply["tool_calls"] and (not content or content.isspace()):
        return EMPTY
    if is_cut_off(note.finish_reason):
        return TRUNCATED
    if request is None:
        return NO_USER
    if reaction is None:
        return None if is_decided(note.decision) else NO_NEXT
    before = messages[index - 1]
    if before["role"] == "assistant" and before["content"] == content and before["tool_calls"] == reply["tool_calls"]:
        return DUPLICATE  # logged twice: the prompt ends with the same reply
    # A client that sends its request again looks like a user who repeats it. In a tree, a retry is a sibling message.
    is_by_person = messages[reaction]["role"] == "user" and reaction not in conversation.machine
    asked, said = request["content"], messages[reaction]["content"]
    if is_by_person and not is_decided(note.decision) and note.message_id is None and asked and said:
        return RETRY if asked.strip() == said.strip() and not PLACEHOLDERS.fullmatch(said.strip()) else None
    return None
