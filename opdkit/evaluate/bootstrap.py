"""Confidence intervals at 95%, the percentile bootstrap (Efron 1979), and the test that decides about a change."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Interval = tuple[float, float] | None

RESAMPLES, RESAMPLES_OF_SUMS = 10_000, 2_000
# n differences have the same sign by chance with probability 2 / 2^n (the sign test): 6% for n = 5. So fewer than six
# values other than 0 show no change at 95%, however many zeros are beside them. The bootstrap's interval excludes 0 for
# three of six: it shows how large a change is, and `compute_chance_of_rise` decides whether there is one.
FEWEST = 6
EXACT = 16  # differences of which all 65,536 signs are counted
_AT_ONCE = 1 << 22  # drawn indices or weights held in memory


def interval(
    values: Sequence[float], weights: Sequence[float] | None = None, *, seed: int, resamples: int = RESAMPLES
) -> Interval:
    """Return the interval of the (weighted) mean of `values`, by resampling them with replacement.

    For paired data pass the differences, so that a resample takes before and after of a prompt together. With
    `weights`, such as the tokens of a turn, whole turns are drawn and the mean is over tokens. None for fewer than
    FEWEST values, which are too few to estimate a spread, and for values that are all equal, which show none.
    """
    count = len(values)
    if count < FEWEST:
        return None
    values_n = np.asarray(values, np.float64)
    weights_n = np.ones(count) if weights is None else np.asarray(weights, np.float64)
    rng = np.random.default_rng(seed)
    means, block = np.empty(resamples), max(1, _AT_ONCE // count)
    for start in range(0, resamples, block):
        drawn_bn = rng.integers(count, size=(min(block, resamples - start), count))
        sums_b = (values_n * weights_n)[drawn_bn].sum(1)
        means[start : start + len(drawn_bn)] = sums_b / weights_n[drawn_bn].sum(1)
    return compute_quantile_interval(means)


def compute_quantile_interval(values_B: Array) -> Interval:
    """Return the 2.5% and 97.5% quantiles of a statistic over B resamples.

    None where one has no value (NaN), and where both are equal: no sample is so certain.
    """
    if np.isnan(values_B).any():
        return None
    low, high = np.quantile(values_B, [0.025, 0.975])
    return (float(low), float(high)) if high - low > 1e-12 else None


def score_rise(differences: Array, noise: float = 0.0) -> float:
    """Return z of a rise: (sum d - s) / sqrt(sum d^2), with s = sum d^2 / sum |d|; 0 where the sum is not above 0.

    Where nothing changed for the better or worse, each difference d is as likely as -d, and z is close to a standard
    normal variable; s corrects for continuity. If all d are -1, 0 or 1, this is McNemar's test (1947) with the
    correction of Edwards (1948). sum d^2 is taken to be at least `noise`.
    """
    total, square = differences.sum(), (differences**2).sum()
    return float((total - square / np.abs(differences).sum()) / max(square, noise) ** 0.5) if total > 0 else 0.0


def compute_chance_of_rise(differences: Array, noise: float = 0.0) -> float:
    """Return the probability that chance makes a sum of differences d that is as large; 1 where it is not above 0.

    Where nothing changed for the better or worse, each d is as likely as -d. Of up to EXACT differences other than 0,
    all signs are counted (Fisher's randomization test, 1935). For more, and where sum d^2 is below `noise`, it is the
    probability of the z of `score_rise`.
    """
    sizes, total = np.abs(differences[differences != 0]), float(differences.sum())
    if total <= 0:
        return 1.0
    if len(sizes) > EXACT or (sizes**2).sum() < noise:
        return NormalDist().cdf(-score_rise(differences, noise))
    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate([sums + size, sums - size])
    return float((sums > total - 1e-9).mean())


def resample_sums(sums_SF: Array, seed: int) -> Array:
    """Return F sums over S sessions that are drawn with replacement, for B resamples: [S, F] -> [B, F].

    Whole sessions are drawn, since the turns of a session are correlated.
    """
    sessions = len(sums_SF)
    if not sessions:
        return np.zeros((RESAMPLES_OF_SUMS, sums_SF.shape[1]))
    rng, even = np.random.default_rng(seed), np.full(sessions, 1 / sessions)
    block = max(1, _AT_ONCE // sessions)
    sizes = (min(block, RESAMPLES_OF_SUMS - start) for start in range(0, RESAMPLES_OF_SUMS, block))
    return np.concatenate([rng.multinomial(sessions, even, size=size).astype(float) @ sums_SF for size in sizes])


def share_interval(values_B: Array, share: float | None, sessions: int) -> Interval:
    """Return the quantile interval of a share in [0, 1]; None without a share, and for fewer than FEWEST sessions.

    Where every session has the same share, so do all resamples. Then the interval is Wilson's score interval, also of
    few sessions: it counts each session once (Wilson 1927).
    """
    if share is None or np.isnan(values_B).any():
        return None
    if interval := compute_quantile_interval(values_B):
        return interval if sessions >= FEWEST else None
    z2 = 1.959964**2
    middle = share + z2 / (2 * sessions)
    spread = (z2 * (share * (1 - share) / sessions + z2 / (4 * sessions**2))) ** 0.5
    low, high = ((middle + side) / (1 + z2 / sessions) for side in (-spread, spread))
    return float(max(0.0, low)), float(min(1.0, high))
