"""Questions to a judge, its answers, the votes parsed from them, and the reward that votes add up to. Pure."""

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from opdkit.chat.messages import ROUNDING
from opdkit.chat.openai_messages import Message
from opdkit.config.fields import JSON

OUTCOME = "outcome"  # reward_status of a turn whose reward comes from the log
CONFLICT = "conflict"  # reward_status if a rating and a hint disagree; hint_status if the hint is dropped for this
NOT_BY_VOTES = (OUTCOME, CONFLICT)
WANTED_REPLIES = EDITED, KEPT_REPLY = "edited", "kept"  # hint_status of a hint that holds the reply a person wanted
TOO_LONG = "the prompt does not fit the judge"
# Advice by the name of the question. Only `opdkit judge`, which asks for hint and reward, has --max-section-chars.
REMEDY = (dict.fromkeys(("hint", "reward"), "lower --max-section-chars")
          | dict.fromkeys(("criterion", "trial"), "pass another --judge-model"))  # fmt: skip
NO_ANSWER = "the judge answers other questions, but not this one"
_SUM_ROUNDING = 1e-9  # tolerance for sums of confidences


def holds_reply(hint: str, status: str, decision: JSON | None) -> bool:
    """Return True for a hint with the whole reply that a person edited or kept, also if a reviewer decided on it."""
    texts = ((decision or {}).get(name) for name in ("edited", "kept"))
    return status in WANTED_REPLIES or any(text in hint for text in texts if text)


@dataclass(frozen=True)
class Question:
    """Question about one turn. Its m votes are m answers to the same messages."""

    turn_id: str
    name: str  # hint, reward, criterion or trial
    messages: list[Message]
    votes: range | None = None  # numbers of the votes to give now; None: all of `--votes`

    @property
    def key(self) -> tuple[str, str]:
        return self.turn_id, self.name


@dataclass(frozen=True)
class VoteRequest:
    """Request to a server for one vote."""

    question: Question
    seed: int


class Usage(NamedTuple):
    """Token counts of one answer; `cached` counts the prompt tokens that came from the prefix cache."""

    prompt: int
    cached: int
    completion: int


USAGE = ("prompt tokens", "cached prompt tokens", "completion tokens")  # counters for the sums of these


TRIAL = Question("", "trial", [{"role": "user", "content": "Are you there? Answer yes."}], range(1))  # one request


@dataclass(frozen=True)
class Answer:
    """Sampled answer of a judge."""

    text: str
    finish_reason: str | None = None
    thinking: bool = False  # the prompt itself opened a thinking block
    error: str | None = None  # why there is no answer
    confidence: float | None = None  # probability of the tokens of its last decision; None if it is not known
    usage: Usage | None = None  # None if the server does not report it


Answers = dict[tuple[str, str], list[Answer]]  # key of the question -> answers

# Returns the answers to each question, one per vote, in order. Raises an error rather than make up an answer.
Ask = Callable[[Sequence[Question]], list[list[Answer]]]


@dataclass(frozen=True)
class HintVote:
    """Row of `hint_votes`. `decision` is 1, -1 or None (failed); only decision 1 can have a `hint`."""

    decision: int | None
    hint: str | None
    raw: str
    error: str | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class RewardVote:
    """Row of `reward_votes`. `score` is 1, 0, -1 or None (failed)."""

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
    """Reward of one turn. `agreement` is the share of the valid votes that equal it; null if it is not from votes."""

    reward: int | None
    status: str  # ok, tie, no_quorum, failed, outcome, conflict, empty or not_judged
    agreement: float | None

    @property
    def is_met(self) -> bool | None:
        """Verdict on a criterion; None if the votes tie, fail or say that it cannot be told."""
        return {1: True, -1: False}.get(self.reward or 0)

    def columns(self) -> JSON:
        """Return the columns of `verdicts` that hold the reward."""
        return {"reward": self.reward, "reward_status": self.status, "reward_agreement": self.agreement}


NOT_JUDGED = Reward(None, "not_judged", None)  # nobody was asked


def choose_reward(scores: Sequence[int | None], weights: Sequence[float] | None = None) -> Reward:
    """Return the score with the most valid votes, or with `weights` the largest total weight; a tie gives 0.

    A null score is a failed vote, never a neutral one. The reward is null if no vote is valid (failed), or if fewer
    than half of the votes are, regardless of weights (no_quorum).

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
    """Return the sum of the weights of the votes for `value`, or without weights the number of these votes.

    The sum is rounded once, so that the order of the votes does not matter.
    """
    if weights is None:
        return decisions.count(value)
    return math.fsum(weight for decision, weight in zip(decisions, weights, strict=True) if decision == value)


def list_confidences(votes: Sequence[tuple[int | None, float | None]]) -> list[float] | None:
    """Return the weights of (decision, confidence) votes on one question: the confidences, 0 for failed votes.

    None if the confidence of a valid vote is not known: then each vote on the question counts as one.
    """
    if any(decision is not None and confidence is None for decision, confidence in votes):
        return None
    return [0.0 if decision is None else confidence or 0.0 for decision, confidence in votes]


def count_missing(votes: Sequence[tuple[int | None, float | None]], question: str, most: int, weigh: bool) -> int:
    """Return the fewest further votes that can decide a question with at most `most` votes; 0 once it is decided.

    `votes` are (decision, confidence). The reward is decided once the remaining votes can change neither its value nor
    its status. The hint is decided early only if there can be none, and it is known whether half of the votes are
    valid; if there is a hint, its text is chosen by all votes. A vote weighs at most 1. With `weigh`, a later vote
    without a confidence would make each vote count as one, so both ways of counting must give the same result.

    >>> [count_missing([(1, None)] * n, "reward", 5, False) for n in range(4)]
    [3, 2, 1, 0]
    """
    open_votes, decisions = most - len(votes), [decision for decision, _ in votes]
    valid = sum(decision is not None for decision in decisions)
    leads: dict[int, float] = {}  # of a value over its best rival, in the way of counting that gives the smaller lead
    rivals = {-1: (1,)} if question == "hint" else {1: (0, -1), 0: (1, -1), -1: (1, 0)}
    for weights in [None, list_confidences(votes)] if weigh else [None]:
        totals = {value: sum_weights(value, decisions, weights) for value in (1, 0, -1)}
        for value, others in rivals.items():
            lead = totals[value] - max(totals[other] for other in others) - (_SUM_ROUNDING if weights else 0)
            leads[value] = min(lead, leads.get(value, lead))
    votes_to_quorum, votes_until_tie = (most + 1) // 2 - valid, (open_votes - max(leads.values())) / 2
    # A tie gives reward 0, so a possible tie leaves the reward open. It settles the hint: no majority, no hint.
    votes_to_win = math.ceil(votes_until_tie) if question == "hint" else math.floor(votes_until_tie) + 1
    # Enough failed votes decide, too: no quorum. A reward without any valid vote is "failed": known only at the end.
    failures_that_decide = open_votes if question != "hint" and not valid else max(open_votes - votes_to_quorum + 1, 0)
    return min(max(votes_to_win, votes_to_quorum, 0), failures_that_decide, open_votes)


def compute_confidence(logprobs: Sequence[float]) -> float | None:
    """Return the probability of tokens from their log-probs (nats), in float32; None without valid log-probs."""
    if not logprobs or not all(math.isfinite(x) and x < ROUNDING for x in logprobs):
        return None
    (stored,) = array("f", [min(1.0, math.exp(math.fsum(logprobs)))])
    return stored
