"""Questions to a judge, its answers, the votes read from them, and the reward that they add up to. Pure."""

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from opdkit.chat.messages import ROUNDING
from opdkit.chat.openai_messages import Message
from opdkit.config.fields import JSON

OUTCOME = "outcome"  # reward_status of a turn whose reward the log brings along
CONFLICT = "conflict"  # reward_status where a rating and a hint disagree; hint_status of a hint that is left out for it
NOT_BY_VOTES = (OUTCOME, CONFLICT)
WANTED_REPLIES = EDITED, KEPT_REPLY = "edited", "kept"  # hint_status of a hint that holds the reply a person wanted
TOO_LONG = "the prompt does not fit the judge"
# What helps, by the name of the question: only the command that asks for hints and rewards has the first option.
REMEDY = (dict.fromkeys(("hint", "reward"), "lower --max-section-chars")
          | dict.fromkeys(("criterion", "trial"), "pass another --judge-model"))  # fmt: skip
NO_ANSWER = "the judge answers others, not this"
_SUM_ROUNDING = 1e-9  # of sums of confidences


@dataclass(frozen=True)
class Question:
    """Question about one turn. Its m votes are m answers to the same messages."""

    turn_id: str
    name: str  # hint or reward
    messages: list[Message]
    votes: range | None = None  # those to give now; None: all of `--votes`

    @property
    def key(self) -> tuple[str, str]:
        return self.turn_id, self.name


@dataclass(frozen=True)
class VoteRequest:
    """Vote that a server is asked for."""

    question: Question
    seed: int


class Usage(NamedTuple):
    """Tokens of one answer; `cached` are those of the prompt that the server had read before."""

    prompt: int
    cached: int
    completion: int


USAGE = ("prompt tokens", "cached prompt tokens", "completion tokens")  # names of the counters of their sums


TRIAL = Question("", "trial", [{"role": "user", "content": "Are you there? Answer yes."}], range(1))  # one request


@dataclass(frozen=True)
class Answer:
    """Sample of a judge."""

    text: str
    finish_reason: str | None = None
    thinking: bool = False  # the prompt itself opened a thinking block
    error: str | None = None  # why this judge cannot answer this question at all
    confidence: float | None = None  # probability of the tokens of its last decision; None where it is not known
    usage: Usage | None = None  # None where the server does not say


Answers = dict[tuple[str, str], list[Answer]]  # by the key of their question

# The answers to each question, one per vote, in order. Raises rather than make up an answer that was never given.
Ask = Callable[[Sequence[Question]], list[list[Answer]]]


@dataclass(frozen=True)
class HintVote:
    """Row of `hint_votes`. `decision` is 1 or -1; `hint` only ever goes with 1."""

    decision: int | None
    hint: str | None
    raw: str
    error: str | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class RewardVote:
    """Row of `reward_votes`. `score` is 1, 0 or -1."""

    score: int | None
    raw: str
    error: str | None = None
    confidence: float | None = None


class Votes(NamedTuple):
    """Votes on the questions about one turn."""

    hint: list[HintVote]
    reward: list[RewardVote]

    def columns(self, turn_id: str) -> JSON:
        """Return the columns of `verdicts` and `escalated` that hold the votes."""
        return {"turn_id": turn_id, "hint_votes": [asdict(vote) for vote in self.hint],
                "reward_votes": [asdict(vote) for vote in self.reward]}  # fmt: skip


@dataclass(frozen=True)
class Reward:
    """Reward of one turn. `agreement` is the share of the valid votes that equal it; null where votes gave none."""

    reward: int | None
    status: str  # ok, tie, no_quorum, failed, outcome, conflict, empty or not_judged
    agreement: float | None

    @property
    def is_met(self) -> bool | None:
        """Verdict on a criterion; None where the votes tie, fail or cannot tell."""
        return {1: True, -1: False}.get(self.reward or 0)

    def columns(self) -> JSON:
        """Return the columns of `verdicts` that hold the reward."""
        return {"reward": self.reward, "reward_status": self.status, "reward_agreement": self.agreement}


NOT_JUDGED = Reward(None, "not_judged", None)  # nobody was asked


def choose_reward(scores: Sequence[int | None], weights: Sequence[float] | None = None) -> Reward:
    """Return the value with the most valid votes, or with `weights` the one with the largest sum; a tie is 0.

    Null scores are votes that failed, never neutral ones. When none is valid the reward is null (failed), and when
    fewer than half are (no_quorum), whatever they weigh.

    >>> choose_reward([1, 1, -1, 1, 0])
    Reward(reward=1, status='ok', agreement=0.6)
    >>> choose_reward([1, 1, -1], [0.4, 0.5, 0.95])
    Reward(reward=-1, status='ok', agreement=0.3333333333333333)
    """
    valid = [score for score in scores if score is not None]
    if not valid:
        return Reward(None, "failed", None)
    if 2 * len(valid) < len(scores):
        return Reward(None, "no_quorum", None)
    totals = {score: sum_weights(score, scores, weights) for score in valid}
    best = [score for score, total in totals.items() if total == max(totals.values())]
    reward, status = (best[0], "ok") if len(best) == 1 else (0, "tie")
    return Reward(reward, status, valid.count(reward) / len(valid))


def sum_weights(value: int, decisions: Sequence[int | None], weights: Sequence[float] | None) -> float:
    """Return the sum of the weights of the votes for `value`, or their number where there are no weights.

    The sum is rounded once, so that the order of the votes does not matter.
    """
    if weights is None:
        return decisions.count(value)
    return math.fsum(weight for decision, weight in zip(decisions, weights, strict=True) if decision == value)


def list_confidences(votes: Sequence[tuple[int | None, float | None]]) -> list[float] | None:
    """Return the weights of (decision, confidence) votes on one question: the confidences, 0 for failed votes.

    None where the confidence of a valid vote is not known: then each vote of the question counts as one.
    """
    if any(decision is not None and confidence is None for decision, confidence in votes):
        return None
    return [0.0 if decision is None else confidence or 0.0 for decision, confidence in votes]


def count_missing(votes: Sequence[tuple[int | None, float | None]], question: str, most: int, weigh: bool) -> int:
    """Return how many more votes, at least, decide a question of which `most` can be asked; 0 once it is decided.

    `votes` are (decision, confidence). The reward is decided when no answers of the remaining votes change it or its
    status. The hint is decided when there can be none, and it is known whether half of the votes are valid; where there
    is one, all votes take part in the choice of its text. A vote weighs at most 1. With `weigh`, a later vote without a
    confidence makes all of them count as one, so that both ways to count have to agree.

    >>> [count_missing([(1, None)] * n, "reward", 5, False) for n in range(4)]
    [3, 2, 1, 0]
    """
    left, decisions = most - len(votes), [decision for decision, _ in votes]
    valid = sum(decision is not None for decision in decisions)
    leads: dict[int, float] = {}  # of a value over its best rival, in the way to count that is worse for it
    rivals = {-1: (1,)} if question == "hint" else {1: (0, -1), 0: (1, -1), -1: (1, 0)}
    for weights in [None, list_confidences(votes)] if weigh else [None]:
        totals = {value: sum_weights(value, decisions, weights) for value in (1, 0, -1)}
        for value, others in rivals.items():
            lead = totals[value] - max(totals[other] for other in others) - (_SUM_ROUNDING if weights else 0)
            leads[value] = min(lead, leads.get(value, lead))
    votes_to_quorum, votes_to_tie = (most + 1) // 2 - valid, (left - max(leads.values())) / 2
    # A tie changes the reward; a hint, it only prevents.
    votes_to_win = math.ceil(votes_to_tie) if question == "hint" else math.floor(votes_to_tie) + 1
    # Failed votes decide, too. A reward has another status where none is valid, which is known at the end.
    votes_to_certain_failure = left if question != "hint" and not valid else max(left - votes_to_quorum + 1, 0)
    return min(max(votes_to_win, votes_to_quorum, 0), votes_to_certain_failure, left)


def compute_confidence(logprobs: Sequence[float]) -> float | None:
    """Return the probability of tokens from their log-probs (nats), in float32; None where one is not a log-prob."""
    if not logprobs or not all(math.isfinite(x) and x < ROUNDING for x in logprobs):
        return None
    (stored,) = array("f", [min(1.0, math.exp(math.fsum(logprobs)))])
    return stored
