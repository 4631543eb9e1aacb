"""Rewards that fewer of the stored votes, or independent votes, would have given. Pure functions.

A distribution is a dict from a reward (-1, 0, 1, or None for no reward) to its probability. Votes are always counted by
`opdkit.judge.votes.choose_reward`, with its ties and its quorum.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from types import MappingProxyType

from opdkit.judge.votes import choose_reward

Reward = int | None
Distribution = Mapping[Reward, float]
Counts = tuple[int, int, int, int]

SCORES: tuple[Reward, ...] = (-1, 0, 1, None)


def count_votes(scores: Sequence[Reward]) -> Counts:
    """Count the votes that are -1, 0, 1 and None."""
    counts = Counter(scores)
    return counts[-1], counts[0], counts[1], counts[None]


@lru_cache(maxsize=1 << 14)  # few votes have few different counts
def find_subset_rewards(counts: Counts, k: int) -> Distribution:
    """Return the exact distribution of the reward of k of the votes, all subsets of this size equally likely.

    A subset with c_i of the n_i votes of kind i occurs prod C(n_i, c_i) times out of C(n, k) (multivariate
    hypergeometric). For k = n it is the stored reward. Raises ValueError unless 1 <= k <= n.
    """
    if not 1 <= k <= sum(counts):
        raise ValueError(f"{k} votes of {sum(counts)}")
    ways: defaultdict[Reward, int] = defaultdict(int)
    for subset in _list_compositions(k, counts):
        ways[_decide(subset)] += math.prod(math.comb(n, c) for n, c in zip(counts, subset, strict=True))
    total = math.comb(sum(counts), k)
    return MappingProxyType({reward: count / total for reward, count in ways.items()})


def find_independent_rewards(probabilities: Distribution, k: int) -> Distribution:
    """Return the exact distribution of the reward of k independent votes, drawn from `probabilities` (multinomial)."""
    possible = [probabilities.get(score, 0.0) for score in SCORES]
    rewards: defaultdict[Reward, float] = defaultdict(float)
    limits = tuple(k if p > 0 else 0 for p in possible)
    for votes in _list_compositions(k, limits):
        ways = math.factorial(k) // math.prod(map(math.factorial, votes))
        rewards[_decide(votes)] += ways * math.prod(p**c for p, c in zip(possible, votes, strict=True))
    return dict(rewards)


def _list_compositions(k: int, limits: Sequence[int]) -> Iterator[Counts]:
    """Yield all counts of k votes with at most `limits` of each kind."""
    minus, zero, plus, null = limits
    for a in range(min(k, minus) + 1):
        for b in range(min(k - a, zero) + 1):
            for c in range(max(0, k - a - b - null), min(k - a - b, plus) + 1):
                yield a, b, c, k - a - b - c


@lru_cache(maxsize=1 << 16)
def _decide(counts: Counts) -> Reward:
    return choose_reward([score for score, n in zip(SCORES, counts, strict=True) for _ in range(n)]).reward


def combine_rewards(how: str, rewards: Iterable[Reward]) -> Reward:
    """Return a session's reward from those of its turns in their order: `last`, the sign of the `mean`, or the `min`.

    Turns without a reward do not count. None if no turn has a reward.
    """
    (reward,) = combine_distributions(how, ({reward: 1.0} for reward in rewards))
    return reward


def combine_distributions(how: str, turns: Iterable[Distribution]) -> Distribution:
    """Return the exact distribution of `combine_rewards` if each turn's reward is drawn independently from its own."""
    states: Mapping[Reward, float] = {None: 1.0}
    for turn in turns:
        following: defaultdict[Reward, float] = defaultdict(float)
        for (state, p), (reward, q) in product(states.items(), turn.items()):
            after = state if reward is None else reward
            if reward is not None and state is not None:
                after = {"last": reward, "mean": state + reward, "min": min(state, reward)}[how]
            following[after] += p * q
        states = following
    if how != "mean":
        return dict(states)
    signs: defaultdict[Reward, float] = defaultdict(float)
    for total, p in states.items():
        signs[total if total is None else (total > 0) - (total < 0)] += p
    return dict(signs)


def choose_sizes(most: int) -> list[int]:
    """Return the numbers of votes to measure: all up to 9, then wider apart, and `most`."""
    return sorted({k for k in (*range(1, 10), 11, 13, 15, 17, 21, 25, 31) if k < most} | ({most} if most else set()))


def find_worth_paying(points: Sequence[tuple[int, float, float]], tolerance: float, labels: int) -> int | None:
    """Return the fewest votes whose accuracy and coverage are both within `tolerance` of the best measured.

    `points` are (votes, accuracy, coverage). None without points, or if `labels` are too few.
    """
    if is_too_coarse(labels, tolerance):
        return None
    known = [point for point in points if not math.isnan(point[1])]
    best, widest = (max((point[column] for point in known), default=0.0) for column in (1, 2))
    # 1e-9: rounding must not decide between equal values.
    enough = [k for k, hit, cover in known if hit >= best - tolerance - 1e-9 and cover >= widest - tolerance - 1e-9]
    return min(enough, default=None)


def is_too_coarse(labels: int, tolerance: float) -> bool:
    """Return True if one label more or less changes a share by over `tolerance` (at least 0.01)."""
    return labels * max(tolerance, 0.01) < 1
