"""OpenClaw-RL record files: one line per turn, with the whole prompt of that turn (chains.py).

The metadata holds the other fields of every record of a session, without the rendered `prompt_text`, which adds
nothing to the messages.
"""

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.chat.markup import split_reply
from opdkit.chat.messages import first_text, message, read_calls, read_messages, read_note, read_tools
from opdkit.extract.formats.chains import Call, call_reader

VOTES = "judge votes, not a conversation"
_LEFT_OUT = frozenset(("messages", "prompt_text", "response_text", "tool_calls", "next_state", "session_id", "model",
                       "tools", "logprobs", "response_token_ids", "token_ids", "response_ids"))  # fmt: skip
_REPLY_HEADER = "<|im_start|>assistant\n"


def recognises(record: JSON) -> bool:
    """Return whether the record has a prompt as messages with a separate reply, or a judge's votes on a reply."""
    return is_votes(record) or ("response_text" in record and isinstance(record.get("messages"), list))


def is_votes(record: JSON) -> bool:
    """Return whether a record is from the judge's own record file, which holds no conversation."""
    return "votes" in record and "session_id" in record and "messages" not in record


def id_of(record: JSON) -> str | None:
    """Return the session id, or "unknown" without one, as OpenClaw-RL itself does; None for the judge's votes."""
    logged = record.get("session_id")
    return None if is_votes(record) else "unknown" if logged in (None, "") else str(logged)


def read_call(record: JSON) -> Call:
    """Read one turn. Of several parallel tool results, the logged next state is only the last. Raises Unreadable."""
    if is_votes(record):
        raise Unreadable(VOTES)
    prompt = record.get("messages")
    if not isinstance(prompt, list) or not prompt:
        raise Unreadable("no messages", "the record has no prompt under `messages`")
    if not isinstance(record.get("response_text"), str):
        raise Unreadable("no reply", "the record has no `response_text`")
    tools = read_tools(record.get("tools"))
    messages, _ = read_messages(prompt)
    reply, note = read_reply(record), read_note(record)
    following = read_messages([record["next_state"]])[0] if record.get("next_state") else []
    if following and following[0]["role"] not in ("user", "tool"):
        following = []
    model, turn = first_text(record.get("model")), record.get("turn")
    logged = {k: v for k, v in record.items() if k not in _LEFT_OUT}
    return Call(messages, reply, note, following, turn, model, tools, logged, session=id_of(record))


def read_reply(record: JSON) -> JSON:
    """Return the reply as a message: thinking apart, no end markers, calls from the log or else from the markup.

    If the rendered prompt was not a prefix of the rendered whole, the recorder logged the whole conversation as the
    reply. Raises Unreadable if the reply cannot be separated from it.
    """
    text: str = record["response_text"]
    prompt = first_text(record.get("prompt_text"))
    # Every template begins with a control token and a role; no reply begins like that.
    if prompt and text.startswith(prompt[:12]):
        if _REPLY_HEADER not in text:
            raise Unreadable("reply is the whole conversation", "it has no assistant header")
        text = text.rsplit(_REPLY_HEADER, 1)[1]
    reasoning, answer, calls = split_reply(text)
    if record.get("tool_calls"):
        calls = read_calls(record["tool_calls"])
    return message("assistant", answer or None, reasoning=reasoning, tool_calls=calls)


READER = call_reader("openclaw_rl", recognises, read_call, id_of)
