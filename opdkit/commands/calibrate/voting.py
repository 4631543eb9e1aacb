"""What fewer votes would have said, from the votes that there are; and what independent votes would say. Pure.

A distribution is a dict from a reward (-1, 0, 1, or null where there is none) to its probability. What votes add up
to is decided by `opdkit.judge.votes.reward_of` alone: its ties and its quorum hold here too.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from opdkit.judge.votes import reward_of

Reward = int | None
Distribution = Mapping[Reward, float]
Counts = tuple[int, int, int, int]

SCORES: tuple[Reward, ...] = (-1, 0, 1, None)


def counts_of(scores: Sequence[Reward]) -> Counts:
    """How many votes are -1, 0, 1 and null."""
    found = Counter(scores)
    return found[-1], found[0], found[1], found[None]


@lru_cache(maxsize=1 << 14)  # few votes can be given in few ways
def of_subsets(counts: Counts, k: int) -> Distribution:
    """The reward of k of the votes, over all subsets of that size, each as likely: exact, no draws.

    A subset with c_i of the n_i votes of kind i occurs prod C(n_i, c_i) times out of C(n, k) (multivariate
    hypergeometric). With all the votes it is the stored reward. Raises ValueError unless 1 <= k <= n.
    """
    if not 1 <= k <= sum(counts):
        raise ValueError(f"{k} votes of {sum(counts)}")
    ways: defaultdict[Reward, int] = defaultdict(int)
    for some in _compositions(k, counts):
        ways[_reward(some)] += math.prod(math.comb(n, c) for n, c in zip(counts, some, strict=True))
    total = math.comb(sum(counts), k)
    return MappingProxyType({reward: count / total for reward, count in ways.items()})


def of_independent(probabilities: Distribution, k: int) -> Distribution:
    """The reward of k votes that are drawn independently, each score with its probability (multinomial): exact."""
    possible = [probabilities.get(score, 0.0) for score in SCORES]
    found: defaultdict[Reward, float] = defaultdict(float)
    limits = tuple(k if p > 0 else 0 for p in possible)
    for some in _compositions(k, limits):
        ways = math.factorial(k) // math.prod(map(math.factorial, some))
        found[_reward(some)] += ways * math.prod(p**c for p, c in zip(possible, some, strict=True))
    return dict(found)


def _compositions(k: int, limits: Sequence[int]) -> Iterator[Counts]:
    """All ways to take k votes, at most `limits` of each kind."""
    minus, zero, plus, null = limits
    for a in range(min(k, minus) + 1):
        for b in range(min(k - a, zero) + 1):
            for c in range(max(0, k - a - b - null), min(k - a - b, plus) + 1):
                yield a, b, c, k - a - b - c


@lru_cache(maxsize=1 << 16)
def _reward(counts: Counts) -> Reward:
    return reward_of([score for score, n in zip(SCORES, counts, strict=True) for _ in range(n)]).reward


# -- several turns, one label ---------------------------------------------------------------------------------------


def session_reward(how: str, rewards: Iterable[Reward]) -> Reward:
    """The reward of a session from those of its turns in their order: `last`, the sign of the `mean`, or the `min`.

    Turns without a reward count for nothing; null where none has one.
    """
    state: Reward = None
    for reward in rewards:
        state = _step(how, state, reward)
    return _sign(state) if how == "mean" else state


def session_distribution(how: str, turns: Iterable[Distribution]) -> Distribution:
    """The same for rewards that are drawn independently of each other, each from its distribution: exact."""
    states: Mapping[Reward, float] = {None: 1.0}
    for turn in turns:
        following: defaultdict[Reward, float] = defaultdict(float)
        for state, p in states.items():
            for reward, q in turn.items():
                following[_step(how, state, reward)] += p * q
        states = following
    found: defaultdict[Reward, float] = defaultdict(float)
    for state, p in states.items():
        found[_sign(state) if how == "mean" else state] += p
    return dict(found)


def _step(how: str, state: Reward, reward: Reward) -> Reward:
    if reward is None or state is None:
        return state if reward is None else reward
    return {"last": reward, "mean": state + reward, "min": min(state, reward)}[how]


def _sign(total: Reward) -> Reward:
    return total if total is None else (total > 0) - (total < 0)


# -- how many votes -------------------------------------------------------------------------------------------------


def sizes(most: int) -> list[int]:
    """The numbers of votes that are looked at, up to `most`: all up to 9, then wider apart."""
    return sorted({k for k in (*range(1, 10), 11, 13, 15, 17, 21, 25, 31) if k < most} | ({most} if most else set()))


def worth_paying(points: Sequence[tuple[int, float, float]], tolerance: float) -> int | None:
    """The fewest votes whose accuracy and coverage are both within `tolerance` of the best measured.

    `points` are (votes, accuracy, coverage). Null without points.
    """
    known = [point for point in points if not math.isnan(point[1])]
    if not known:
        return None
    best, widest = max(p[1] for p in known), max(p[2] for p in known)
    # Rounding must not decide between two that are equal on paper.
    enough = [k for k, hit, cover in known if hit >= best - tolerance - 1e-9 and cover >= widest - tolerance - 1e-9]
    return min(enough, default=None)
