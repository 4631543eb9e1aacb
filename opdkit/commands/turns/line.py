"""Turns of a run as lines of a list, and messages as text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opdkit.commands.turns.of_run import RunTurn
from opdkit.config.fields import JSON
from opdkit.judge.votes import CONFLICT
from opdkit.store.joined_turns import JoinedTurn

CHARS = 300  # of each text of a line, at most
VERDICT = ("reward", "reward_status", "reward_agreement", "hint", "hint_status")


@dataclass(frozen=True)
class TurnLine:
    """Everything that a list shows of a turn. The texts are single lines of at most CHARS characters."""

    number: int  # its place among all turns of the run
    turn_id: str
    source: str
    state: str  # one of of_run.STATES
    skip_reason: str | None
    reward: int | None
    reward_status: str | None
    reward_agreement: float | None
    certainty: float | None  # of the votes, see `measure_certainty`
    hint: str | None  # not cut
    hint_status: str | None
    review: JSON | None  # the decision in force
    tokens: int | None  # sampled tokens of the logged reply's target
    strength: float | None  # mean absolute advantage of these tokens (nats)
    advantage: float | None  # sum of their advantages (nats)
    request: str
    reply: str
    next_state: str
    scored_reward: int | None = None  # reward of the logged reply's target, as the teacher stage wrote it


def make_line(number: int, turn: RunTurn, verdict: JSON | None) -> TurnLine:
    """Return the line of a turn. `verdict`: of the votes alone, or with the decision in force; None: not judged."""
    target = next((target for target in turn.targets if target.written is None), None)
    advantages = None if target is None else target.advantages
    strength = None if advantages is None or not len(advantages) else float(np.abs(advantages).mean())
    request, reply, next_state = map(_line, split_turn(turn))
    return TurnLine(
        number=number,
        turn_id=turn.turn_id,
        source=turn.session["source"],
        state=turn.state,
        skip_reason=turn.skip_reason,
        **{name: None if verdict is None else verdict[name] for name in VERDICT},
        certainty=None if verdict is None else measure_certainty(verdict),
        review=None if turn.review is None else turn.review.to_json(),
        tokens=None if target is None else target.sampled,
        strength=strength,
        advantage=None if advantages is None else float(advantages.sum()),
        request=request,
        reply=reply,
        next_state=next_state,
        scored_reward=None if target is None else target.reward,
    )


def measure_certainty(verdict: JSON) -> float | None:
    """Return the share of the votes that agree: on the reward, or on whether there is a hint, whichever is smaller.

    A vote is weighted by its confidence, if known; a failed vote counts for no answer. None without votes. 0 if a
    person's rating and the hint disagree.
    """
    if verdict["reward_status"] == CONFLICT:
        return 0.0
    shares = []
    for question, value in (("reward", "score"), ("hint", "decision")):
        if votes := verdict[f"{question}_votes"]:
            weights = Counter[int]()
            for vote in votes:
                if vote[value] is not None:
                    weights[vote[value]] += 1.0 if vote["confidence"] is None else vote["confidence"]  # type: ignore[assignment]
            shares.append(max(weights.values(), default=0.0) / len(votes))
    return min(shares, default=None)


def split_turn(turn: JoinedTurn) -> tuple[Sequence[JSON], Sequence[JSON], Sequence[JSON]]:
    """Return the request (the last user message of the prompt, or nothing), the reply, and the next state."""
    messages, index = turn.session["messages"], turn.index
    request = next((message for message in reversed(messages[:index]) if message["role"] == "user"), None)
    next_state = messages[index + 1 : index + 1 + turn.turn["next_count"]]
    return [] if request is None else [request], [messages[index]], next_state


def join_messages(messages: Sequence[JSON]) -> str:
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
