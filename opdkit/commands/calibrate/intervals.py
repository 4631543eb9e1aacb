"""How sure a ratio of sums is: the percentile bootstrap over sessions."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RESAMPLES = 2_000
_AT_ONCE = 1 << 22  # weights held in memory


def resampled(sums_SF: Array, seed: int, resamples: int = RESAMPLES) -> Array:
    """Sums over sessions that are drawn with replacement: (sessions, features) to (resamples, features).

    Whole sessions are drawn, since the turns of one are alike. (Efron 1979)
    """
    sessions = len(sums_SF)
    rng, even = np.random.default_rng(seed), np.full(sessions, 1 / max(1, sessions))
    block = max(1, _AT_ONCE // max(1, sessions))
    drawn = [
        rng.multinomial(sessions, even, size=min(block, resamples - start)).astype(float) @ sums_SF
        for start in range(0, resamples, block)
    ]
    return np.concatenate(drawn)


def interval(values_B: Array) -> tuple[float, float] | None:
    """The 2.5% and 97.5% quantiles; None where a resample has no value."""
    if not len(values_B) or np.isnan(values_B).any():
        return None
    low, high = np.quantile(values_B, [0.025, 0.975])
    return float(low), float(high)


def share_interval(values_B: Array, share: float, sessions: int) -> tuple[float, float] | None:
    """The same for a share. Where every session says the same, resamples do, too, however few they are: then Wilson's.

    Wilson's score interval at 95% counts each session once (Wilson 1927).
    """
    found = interval(values_B)
    if found is None or found[1] - found[0] > 1e-12:
        return found
    z2 = 1.959964**2
    middle, spread = (
        share + z2 / (2 * sessions),
        (z2 * (share * (1 - share) / sessions + z2 / (4 * sessions**2))) ** 0.5,
    )
    low, high = ((middle + side) / (1 + z2 / sessions) for side in (-spread, spread))
    return float(max(0.0, low)), float(min(1.0, high))
