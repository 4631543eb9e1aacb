"""One row a logged reply: its next state, and whether it may be judged and trained on."""

from collections.abc import Sequence
from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Note
from opdkit.chat.finish_reasons import is_cut_off
from opdkit.store.skip_reasons import DUPLICATE, EMPTY, NO_NEXT, NO_USER, RETRY, SIDE, TRUNCATED
from opdkit.store.turn_ids import turn_id

_NOTHING = Note()


def turns(session_id: str, conversation: Conversation) -> list[tuple[Any, ...]]:
    """The rows of tables.TURNS for one conversation, in order, each a tuple of its columns.

    The next state of a turn is every message after it up to the next assistant message. Of two assistant messages in a
    row the first has none.
    """
    messages, notes = conversation.messages, conversation.notes
    rows: list[tuple[Any, ...]] = []
    last_user = request = reaction = None
    typed = True  # whether a person wrote the reaction
    reply: int | None = None  # the turn whose next state is being read; `request` is the last user message before it
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "assistant":
            if reply is not None:
                rows.append(
                    _row(session_id, messages, reply, index, request, reaction, typed, notes.get(reply, _NOTHING))
                )
            reply, request, reaction = index, last_user, None
        elif role != "system":  # which is no reaction
            if reaction is None:
                reaction, typed = message, index not in conversation.machine
            if role == "user":
                last_user = message
    if reply is not None:
        note = notes.get(reply, _NOTHING)
        rows.append(_row(session_id, messages, reply, len(messages), request, reaction, typed, note))
    return rows


def _row(
    session_id: str,
    messages: Sequence[JSON],
    index: int,
    end: int,
    request: JSON | None,
    reaction: JSON | None,
    typed: bool,
    note: Note,
) -> tuple[Any, ...]:
    """The turn `messages[index]`, whose next state ends before `messages[end]` and begins, as a reaction, with
    `reaction`, which a person has `typed`."""
    skip = note.skip_reason or _skip_reason(messages, index, request, reaction, typed, note)
    return (
        turn_id(session_id, index),
        session_id,
        index,  # message_index
        end - index - 1,  # next_count
        None if reaction is None else reaction["role"],  # next_role
        note.kind,
        skip is None,  # trainable
        skip,  # skip_reason
        note.finish_reason,
        note.token_ids,  # response_token_ids
        note.logprobs,  # behavior_logprobs
    )


def _skip_reason(
    messages: Sequence[JSON], index: int, request: JSON | None, reaction: JSON | None, typed: bool, note: Note
) -> str | None:
    """Why the reply at `index` is not trainable; None if it is."""
    reply = messages[index]
    content = reply["content"]
    if note.kind == "side":
        return SIDE
    if not reply["tool_calls"] and (not content or content.isspace()):
        return EMPTY
    if is_cut_off(note.finish_reason):
        return TRUNCATED
    if request is None:
        return NO_USER
    if reaction is None:
        return NO_NEXT
    before = messages[index - 1]
    if before["role"] == "assistant" and before["content"] == content and before["tool_calls"] == reply["tool_calls"]:
        return DUPLICATE  # logged twice: the prompt ends with the very reply
    if typed and reaction["role"] == "user" and request["content"] and reaction["content"]:
        same = request["content"].strip() == reaction["content"].strip()
        return RETRY if same else None  # a client that sends the request again reads as a user who repeats it
    return None
