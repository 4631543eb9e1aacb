"""Questions to a judge, its answers, the votes read from them, and the reward that they add up to. Pure."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opdkit.chat.openai_messages import Message

OUTCOME = "outcome"  # reward_status of a turn whose reward the log brings along
TOO_LONG = "the prompt does not fit the judge"
NO_ANSWER = "the judge answers others, not this"


@dataclass(frozen=True)
class Question:
    """Question about one turn. Its m votes are m answers to the same messages."""

    turn_id: str
    name: str  # hint or reward
    messages: list[Message]


@dataclass(frozen=True)
class Request:
    """Vote that a server is asked for."""

    messages: list[Message]
    seed: int


@dataclass(frozen=True)
class Answer:
    """Sample of a judge."""

    text: str
    finish_reason: str | None = None
    thinking: bool = False  # the prompt itself opened a thinking block
    error: str | None = None  # why this judge cannot answer this question at all


# m answers to each question, in order. Raises rather than make up an answer that was never given.
Ask = Callable[[Sequence[Question]], list[list[Answer]]]


@dataclass(frozen=True)
class HintVote:
    """Row of `hint_votes`. `decision` is 1 or -1; `hint` only ever goes with 1."""

    decision: int | None
    hint: str | None
    raw: str
    error: str | None = None


@dataclass(frozen=True)
class RewardVote:
    """Row of `reward_votes`. `score` is 1, 0 or -1."""

    score: int | None
    raw: str
    error: str | None = None


@dataclass(frozen=True)
class Reward:
    """Reward of one turn. `agreement` is the share of the valid votes that equal it; null where it is null."""

    reward: int | None
    status: str  # ok, tie, no_quorum, failed or outcome
    agreement: float | None


def reward_of(scores: Sequence[int | None]) -> Reward:
    """Return the value with the most valid votes; a tie is 0.

    Null scores are votes that failed, never neutral ones. When none is valid the reward is null (failed), and when
    fewer than half are (no_quorum).

    >>> reward_of([1, 1, -1, 1, 0])
    Reward(reward=1, status='ok', agreement=0.6)
    """
    valid = [score for score in scores if score is not None]
    if not valid:
        return Reward(None, "failed", None)
    if 2 * len(valid) < len(scores):
        return Reward(None, "no_quorum", None)
    (best, most), *others = Counter(valid).most_common()
    if others and others[0][1] == most:
        return Reward(0, "tie", valid.count(0) / len(valid))
    return Reward(best, "ok", most / len(valid))
