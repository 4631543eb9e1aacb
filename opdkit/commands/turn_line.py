"""A turn of a run as one line of a list, and its messages as text."""

from collections.abc import Sequence
from dataclasses import dataclass

from opdkit.commands.report.joined import JoinedTurn
from opdkit.config.fields import JSON

CHARS = 300  # of each text of a line, at most


@dataclass(frozen=True)
class TurnLine:
    """Everything that a list shows of a turn. The texts are single lines of at most CHARS characters."""

    number: int  # its place among all turns of the run
    turn_id: str
    source: str
    state: str  # one of report.joined.STATES
    skip_reason: str | None
    reward: int | None
    reward_status: str | None
    agreement: float | None
    hint_status: str | None
    hint: str | None  # not cut
    review: JSON | None  # the decision in force
    tokens: int | None  # sampled tokens of the logged reply's target
    strength: float | None  # mean absolute advantage of these tokens (nats)
    advantage: float | None  # sum of their advantages (nats)
    request: str
    reply: str
    next_state: str


def turn_line(number: int, joined: JoinedTurn, verdict: JSON | None) -> TurnLine:
    """Return the line of a turn, with its votes' verdict or the reviewed one."""
    target = next((target for target in joined.targets if target.written is None), None)
    advantages = None if target is None else target.advantages
    known = verdict or {}
    request, reply, next_state = turn_messages(joined.turn, joined.session["messages"])
    return TurnLine(
        number=number,
        turn_id=joined.turn_id,
        source=joined.session["source"],
        state=joined.state,
        skip_reason=joined.turn["skip_reason"],
        reward=known.get("reward"),
        reward_status=known.get("reward_status"),
        agreement=known.get("reward_agreement"),
        hint_status=known.get("hint_status"),
        hint=known.get("hint"),
        review=None if joined.review is None else joined.review.to_json(),
        tokens=None if target is None else target.sampled,
        strength=None if target is None else target.strength,
        advantage=None if advantages is None else float(advantages.sum()),
        request=_line(request),
        reply=_line(reply),
        next_state=_line(next_state),
    )


def turn_messages(turn: JSON, messages: Sequence[JSON]) -> tuple[Sequence[JSON], Sequence[JSON], Sequence[JSON]]:
    """Return the request (the last user message of the prompt, or nothing), the reply, and the next state."""
    index = turn["message_index"]
    request = next((message for message in reversed(messages[:index]) if message["role"] == "user"), None)
    following = messages[index + 1 : index + 1 + turn["next_count"]]
    return [] if request is None else [request], [messages[index]], following


def messages_text(messages: Sequence[JSON]) -> str:
    """Return the contents and the tool calls of messages, one below the other."""
    texts = ([message["content"], *map(call_text, message["tool_calls"])] for message in messages)
    return "\n".join("\n".join(filter(None, parts)) for parts in texts)


def _line(messages: Sequence[JSON]) -> str:
    """Return messages as one short line; a message without content shows its reasoning."""
    texts = []
    for message in messages:
        texts.append((message["content"] or message["reasoning"] or "")[: 4 * CHARS])
        texts += [call_text(call, CHARS) for call in message["tool_calls"]]
    return " ".join(" ".join(texts).split())[:CHARS]


def call_text(call: JSON, chars: int | None = None) -> str:
    """Return a tool call as NAME(ARGUMENTS), with at most `chars` characters of the arguments."""
    return f"{call['name']}({call['arguments'][:chars]})"


def shorten(text: str, chars: int) -> str:
    """Return `text` in at most `chars` characters; an ellipsis ends a text that is cut."""
    return text if len(text) <= chars else text[: chars - 1] + "…"


def signed(reward: int | None) -> str:
    """Return a reward as "+1", "0", "-1" or "none"."""
    return "none" if reward is None else f"{reward:+d}" if reward else "0"
