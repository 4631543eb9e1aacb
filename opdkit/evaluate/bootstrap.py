"""95% confidence intervals by the percentile bootstrap (Efron 1979), and the test that decides about a change."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Interval = tuple[float, float] | None

RESAMPLES, RESAMPLES_OF_SUMS = 10_000, 2_000
# By chance, n differences all have the same sign with probability 2 / 2^n (the sign test): 6% for n = 5. So fewer than
# six nonzero differences never show a change at 95%, however many zeros there are. The bootstrap interval excludes 0
# even if only three of six are nonzero: it shows how large a change is. `compute_chance_of_rise` says if there is one.
FEWEST = 6
EXACT = 16  # up to this many differences, all combinations of signs (65,536) are counted
_AT_ONCE = 1 << 22  # drawn indices or weights in memory at once


def interval(
    values: Sequence[float], weights: Sequence[float] | None = None, *, seed: int, resamples: int = RESAMPLES
) -> Interval:
    """Return the interval of the (weighted) mean of `values`, by resampling them with replacement.

    For paired data pass the differences, so that a resample takes before and after of a prompt together. With
    `weights`, such as the tokens of each turn, whole turns are drawn and the mean is over tokens. Return None for fewer
    than FEWEST values, too few to estimate a spread, and if all values are equal, which shows no spread.
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

    None if a resample has no value (NaN), or if both quantiles are equal: no sample supports such certainty.
    """
    if np.isnan(values_B).any():
        return None
    low, high = np.quantile(values_B, [0.025, 0.975])
    return (float(low), float(high)) if high - low > 1e-12 else None


def score_rise(differences: Array, noise: float = 0.0) -> float:
    """Return z of a rise: (sum d - s) / sqrt(sum d^2), with s = sum d^2 / sum |d|; 0 if sum d is not above 0.

    If nothing got better or worse, each difference d is as likely as -d, and z is close to a standard normal variable;
    s is a continuity correction. If all d are -1, 0 or 1, this is McNemar's test (1947) with the correction of
    Edwards (1948). Under the root, sum d^2 counts as at least `noise`.
    """
    total, square = differences.sum(), (differences**2).sum()
    return float((total - square / np.abs(differences).sum()) / max(square, noise) ** 0.5) if total > 0 else 0.0


def compute_chance_of_rise(differences: Array, noise: float = 0.0) -> float:
    """Return the probability that chance alone makes the sum of differences d at least this large; 1 if it is not > 0.

    If nothing got better or worse, each d is as likely as -d. For up to EXACT nonzero differences, all combinations of
    signs are counted (Fisher's randomization test, 1935). For more, or if sum d^2 is below `noise`, it is the tail
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
    """Return the F column sums of B resamples of the S sessions, with replacement: [S, F] -> [B, F].

    Whole sessions are drawn because the turns of a session are correlated.
    """
    sessions = len(sums_SF)
    if not sessions:
        return np.zeros((RESAMPLES_OF_SUMS, sums_SF.shape[1]))
    rng, even = np.random.default_rng(seed), np.full(sessions, 1 / sessions)
    block = max(1, _AT_ONCE // sessions)
    sizes = (min(block, RESAMPLES_OF_SUMS - start) for start in range(0, RESAMPLES_OF_SUMS, block))
    return np.concatenate([rng.multinomial(sessions, even, size=size).astype(float) @ sums_SF for size in sizes])


def share_interval(values_B: Array, share: float | None, sessions: int) -> Interval:
    """Return the quantile interval of a share in [0, 1]; None without a share, or for fewer than FEWEST sessions.

    If all sessions have the same share, so do all resamples. Then return Wilson's score interval (1927), which counts
    each session once, for any number of sessions.
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
