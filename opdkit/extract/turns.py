"""Turns: one row per logged reply, with its next state, and whether it may be judged and trained on."""

from collections.abc import Sequence
from typing import Any

from opdkit.chat.conversation import JSON, NO_DECISION, Conversation, Note
from opdkit.chat.finish_reasons import is_cut_off
from opdkit.chat.messages import PLACEHOLDERS
from opdkit.store.skip_reasons import DUPLICATE, EMPTY, NO_NEXT, NO_USER, RETRY, SIDE, TRUNCATED
from opdkit.store.turn_ids import turn_id

_NO_NOTE = Note()
_REACTIONS = ("comment", "edited", "kept")  # of a decision: a judge reads them as it reads a next state
_END: JSON = {"role": "assistant"}  # the end of a conversation ends a next state as the next reply does


def turns(session_id: str, conversation: Conversation, *, side: bool = False) -> list[tuple[Any, ...]]:
    """Return the rows of tables.TURNS for one conversation, in order, each a tuple of its columns.

    The next state of a turn is every message after it up to the next assistant message. Of two assistant messages in a
    row the first has none. `side` (--side): turns that are not part of the conversation with the user are trainable.
    """
    messages = conversation.messages
    rows: list[tuple[Any, ...]] = []
    last_user = request = reaction = None
    by_person = True  # a person wrote the reaction, not a program
    reply: int | None = None  # the turn whose next state is being read; `request` is the last user message before it
    for index, message in enumerate([*messages, _END]):
        role = message["role"]
        if role == "assistant":
            if reply is not None:
                note = conversation.notes.get(reply, _NO_NOTE)
                skip = note.skip_reason or (SIDE if note.kind == "side" and not side else None)
                skip = skip or _skip_reason(messages, reply, request, reaction, by_person, note)
                rows.append((
                    turn_id(session_id, reply),
                    session_id,
                    reply,  # message_index
                    index - reply - 1,  # next_count
                    None if reaction is None else reaction["role"],  # next_role
                    note.kind,
                    skip is None,  # trainable
                    skip,  # skip_reason
                    note.finish_reason,
                    note.token_ids,  # response_token_ids
                    note.logprobs,  # behavior_logprobs
                    note.decision,
                ))  # fmt: skip
            reply, request, reaction = index, last_user, None
        elif role != "system":  # a system message is not a reaction
            if reaction is None:
                reaction, by_person = message, index not in conversation.machine
            if role == "user":
                last_user = message
    return rows


def _skip_reason(
    messages: Sequence[JSON], index: int, request: JSON | None, reaction: JSON | None, by_person: bool, note: Note
) -> str | None:
    """Return why the reply at `index` is not trainable; None if it is."""
    reply = messages[index]
    content = reply["content"]
    if not reply["tool_calls"] and (not content or content.isspace()):
        return EMPTY
    if is_cut_off(note.finish_reason):
        return TRUNCATED
    if request is None:
        return NO_USER
    decision = note.decision or NO_DECISION
    is_decided = decision["rating"] is not None or any(map(decision.get, _REACTIONS))
    if reaction is None:
        return None if is_decided else NO_NEXT
    before = messages[index - 1]
    if before["role"] == "assistant" and before["content"] == content and before["tool_calls"] == reply["tool_calls"]:
        return DUPLICATE  # logged twice: the prompt ends with the very reply
    # A client that sends the request again reads as a user who repeats it. In a tree, what it sends is a sibling.
    may_be_retry = by_person and reaction["role"] == "user" and not is_decided and note.message_id is None
    if may_be_retry and request["content"] and reaction["content"]:
        text = request["content"].strip()
        return RETRY if text == reaction["content"].strip() and not PLACEHOLDERS.fullmatch(text) else None
    return None
