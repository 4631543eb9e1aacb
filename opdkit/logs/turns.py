"""One row a logged reply: its next state, and whether it may be judged and trained on."""

import itertools
from collections.abc import Sequence

from opdkit.logs.conversation import JSON, Conversation, Note
from opdkit.turn_ids import turn_id

SIDE, EMPTY, TRUNCATED, NO_USER, NO_NEXT, DUPLICATE, RETRY = (
    "side",
    "empty",
    "truncated",
    "no user message",
    "no next state",
    "duplicate",
    "retry",
)
_CUT_OFF = ("length", "max_tokens")
_NOTHING = Note()


def turns(session_id: str, conversation: Conversation) -> list[JSON]:
    """The rows of tables.TURNS for one conversation, in order.

    The next state of a turn is every message after it up to the next assistant message. Of two assistant messages in a
    row the first has none.
    """
    messages, notes = conversation.messages, conversation.notes
    replies = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    rows: list[JSON] = []
    request, read_to = None, 0  # the last user message before the turn, and how far we have looked for it
    for index, end in itertools.pairwise([*replies, len(messages)]):
        request = _last_user(messages, read_to, index) or request
        read_to = index
        note = notes.get(index, _NOTHING)
        reaction = _reaction(messages, index, end)
        skip = note.skip_reason or _skip_reason(messages, index, request, reaction, note)
        rows.append({
            "turn_id": turn_id(session_id, index),
            "session_id": session_id,
            "message_index": index,
            "next_count": end - index - 1,
            "next_role": reaction["role"] if reaction is not None else None,
            "kind": note.kind,
            "trainable": skip is None,
            "skip_reason": skip,
            "finish_reason": note.finish_reason,
            "response_token_ids": note.token_ids,
            "behavior_logprobs": note.logprobs,
        })  # fmt: skip
    return rows


def _last_user(messages: Sequence[JSON], start: int, stop: int) -> JSON | None:
    for i in range(stop - 1, start - 1, -1):
        if messages[i]["role"] == "user":
            return messages[i]
    return None


def _reaction(messages: Sequence[JSON], index: int, end: int) -> JSON | None:
    """The first message of the next state that somebody said: a system message in between is no reaction."""
    for i in range(index + 1, end):
        if messages[i]["role"] != "system":
            return messages[i]
    return None


def _skip_reason(
    messages: Sequence[JSON], index: int, request: JSON | None, reaction: JSON | None, note: Note
) -> str | None:
    """Why the reply at `index` is not trainable; None if it is."""
    reply = messages[index]
    content = reply["content"]
    if note.kind == "side":
        return SIDE
    if not reply["tool_calls"] and (not content or content.isspace()):
        return EMPTY
    if note.finish_reason in _CUT_OFF:
        return TRUNCATED
    if request is None:
        return NO_USER
    if reaction is None:
        return NO_NEXT
    before = messages[index - 1]
    if before["role"] == "assistant" and before["content"] == content and before["tool_calls"] == reply["tool_calls"]:
        return DUPLICATE  # logged twice: the prompt ends with the very reply
    if reaction["role"] == "user" and request["content"] and reaction["content"]:
        same = request["content"].strip() == reaction["content"].strip()
        return RETRY if same else None  # a client that sends the request again reads as a user who repeats it
    return None
