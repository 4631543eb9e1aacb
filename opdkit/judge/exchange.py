"""Questions to a judge, its answers, and the votes that are read from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opdkit.chat.openai_form import Message

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
