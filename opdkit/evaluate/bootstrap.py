"""How sure a mean is: the percentile bootstrap."""

from collections.abc import Sequence

import numpy as np

RESAMPLES = 10_000
# Differences that all have one sign are chance with probability 2 / 2^n (the sign test): with five that is 6%. So of
# fewer than six values no interval at 95% may keep clear of 0, and the bootstrap's would.
FEWEST = 6
_AT_ONCE = 1 << 22  # drawn indices held in memory


def interval(
    values: Sequence[float], weights: Sequence[float] | None = None, *, seed: int, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """The 2.5% and 97.5% quantiles of the (weighted) mean of `values` over resamples with replacement.

    For paired data hand in the differences: then a resample takes before and after of a prompt together. With
    `weights`, such as the tokens of a turn, whole turns are drawn and the mean is over tokens. None for fewer than
    FEWEST values, which say too little about their spread. (Efron 1979)
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
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
