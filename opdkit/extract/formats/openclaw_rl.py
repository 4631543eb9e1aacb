"""OpenClaw-RL record files: one line a turn, with the whole prompt of that turn.

A session is put together from records that continue each other (chains.py). The turn number and the session id
are not trusted: clients share an id ("unknown"), numbers restart, lines come out of order.

The metadata holds the other fields of every record of a session; the rendered `prompt_text` says nothing that the
messages do not, and is left out.
"""

from collections.abc import Iterator, Sequence

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.markup import split_calls, split_thinking, without_end
from opdkit.chat.messages import message, read_calls, read_messages, read_tools, sampled_tokens
from opdkit.extract.formats.chains import Call, read_chains
from opdkit.extract.formats.reader import LeftOut, Line, Reader, Rejected

VOTES = "judge votes, not a conversation"
_LEFT_OUT = frozenset(("messages", "prompt_text", "response_text", "tool_calls", "next_state", "session_id", "model",
                       "tools", "logprobs", "response_token_ids", "token_ids", "response_ids"))  # fmt: skip
_REPLY_HEADER = "<|im_start|>assistant\n"


def recognises(record: JSON) -> bool:
    """A prompt as messages with the reply beside it, or the judge's votes on one."""
    return is_votes(record) or ("response_text" in record and isinstance(record.get("messages"), list))


def is_votes(record: JSON) -> bool:
    """True for a line of the judge's own record file, which holds no conversation."""
    return "votes" in record and "session_id" in record and "messages" not in record


def logged_id(record: JSON) -> str:
    """The session id of a record, "unknown" where it has none, as OpenClaw-RL itself does."""
    value = record.get("session_id")
    return value if isinstance(value, str) and value else "unknown" if value in (None, "") else str(value)


def id_of(record: JSON) -> str | None:
    """The session id of a record of a conversation; None for the judge's votes."""
    return None if is_votes(record) else logged_id(record)


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected | LeftOut]:
    """All records under one logged session id -> its conversations, the main ones first, in the order they ended."""
    return read_chains(unit, _call)


def _call(record: JSON) -> Call:
    messages = record.get("messages")
    if is_votes(record):
        raise Unreadable(VOTES)
    if not isinstance(messages, list) or not messages:
        raise Unreadable("no messages", "the record has no prompt under `messages`")
    if not isinstance(record.get("response_text"), str):
        raise Unreadable("no reply", "the record has no `response_text`")
    tools, model = read_tools(record.get("tools")), record.get("model")
    return Call(
        read_messages(messages)[0],
        reply_of(record),
        _note(record),
        _next_state(record),
        turn=record.get("turn"),
        model=model if isinstance(model, str) and model else None,
        tools=tools,
        logged={k: v for k, v in record.items() if k not in _LEFT_OUT},
        session=logged_id(record),
    )


def _next_state(record: JSON) -> list[JSON]:
    """The logged next state as messages: of several parallel tool results only the last, the log has no more."""
    following = record.get("next_state")
    messages = read_messages([following])[0] if following else []
    return messages if messages and messages[0]["role"] in ("user", "tool") else []


def reply_of(record: JSON) -> JSON:
    """The reply of a record as a message: thinking apart, end markers gone, calls from the log or from the markup.

    Where the template's rendering of the prompt was no prefix of the whole, the recorder wrote the whole conversation.
    Raises Unreadable when the reply cannot be told from it.
    """
    text: str = record["response_text"]
    prompt = record.get("prompt_text")
    # Every template opens with a control token and a role, which no reply does.
    if isinstance(prompt, str) and prompt and text.startswith(prompt[:12]):
        if _REPLY_HEADER not in text:
            raise Unreadable("reply is the whole conversation", "and no assistant header is in it")
        text = text.rsplit(_REPLY_HEADER, 1)[1]
    reasoning, answer = split_thinking(without_end(text))
    answer, markup = split_calls(answer)
    calls = read_calls(record["tool_calls"]) if record.get("tool_calls") else markup
    return message("assistant", answer or None, reasoning=reasoning, tool_calls=calls)


def _note(record: JSON) -> Note:
    ids, logprobs = sampled_tokens(record)
    side = record.get("turn_type") == "side"
    finish = record.get("finish_reason")
    return Note(finish if isinstance(finish, str) else None, None, "side" if side else "main", ids, logprobs)


READER = Reader("openclaw_rl", "id", recognises, read, id_of=id_of)
