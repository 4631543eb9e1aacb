"""Votes on the reward, added up. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

OUTCOME = "outcome"  # reward_status of a turn whose reward the log brings along


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
    if not is_quorum(len(valid), len(scores)):
        return Reward(None, "no_quorum", None)
    (best, most), *others = Counter(valid).most_common()
    if others and others[0][1] == most:
        return Reward(0, "tie", valid.count(0) / len(valid))
    return Reward(best, "ok", most / len(valid))


def is_quorum(valid: int, asked: int) -> bool:
    """Return whether at least half of the votes asked for are valid."""
    return 2 * valid >= asked
