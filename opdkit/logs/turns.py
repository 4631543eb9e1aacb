"""One row a logged reply: its next state, and whether it may be judged and trained on."""

from collections.abc import Sequence

from opdkit.logs.conversation import JSON, Conversation, Note

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
    rows: list[JSON] = []
    after = len(messages)  # where the next state of the turn at hand ends
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] != "assistant":
            continue
        note = notes.get(index, _NOTHING)
        next_state = messages[index + 1 : after]
        after = index
        next_role = next((m["role"] for m in next_state if m["role"] != "system"), None)
        skip = note.skip_reason or skip_reason(messages, index, next_state, next_role, note)
        rows.append({
            "turn_id": f"{session_id}:{index}",
            "session_id": session_id,
            "message_index": index,
            "next_count": len(next_state),
            "next_role": next_role,
            "kind": note.kind,
            "trainable": skip is None,
            "skip_reason": skip,
            "finish_reason": note.finish_reason,
            "response_token_ids": note.token_ids,
            "behavior_logprobs": note.logprobs,
        })  # fmt: skip
    rows.reverse()
    return rows


def skip_reason(
    messages: Sequence[JSON], index: int, next_state: Sequence[JSON], next_role: str | None, note: Note
) -> str | None:
    """Why the reply at `index` is not trainable; None if it is."""
    reply = messages[index]
    if note.kind == "side":
        return SIDE
    if not reply["tool_calls"] and not (reply["content"] and not reply["content"].isspace()):
        return EMPTY
    if note.finish_reason in _CUT_OFF:
        return TRUNCATED
    request = _request(messages, index)
    if request is None:
        return NO_USER
    if next_role is None:
        return NO_NEXT
    if index and _says_the_same(messages[index - 1], reply):
        return DUPLICATE  # logged twice: the prompt holds the very reply
    if next_role == "user" and _same_text(request, next(m for m in next_state if m["role"] == "user")):
        return RETRY  # a client that sends the request again reads as a user who repeats it
    return None


def _request(messages: Sequence[JSON], index: int) -> JSON | None:
    return next((messages[i] for i in range(index - 1, -1, -1) if messages[i]["role"] == "user"), None)


def _says_the_same(one: JSON, other: JSON) -> bool:
    return all(one[key] == other[key] for key in ("role", "content", "tool_calls"))


def _same_text(one: JSON, other: JSON) -> bool:
    return bool(one["content"]) and (one["content"] or "").strip() == (other["content"] or "").strip()
