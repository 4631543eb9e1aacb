"""The percentile bootstrap: by hand, against plain loops, and how often it holds the truth."""

import numpy as np
import pytest

from opdkit.evaluate.bootstrap import FEWEST, interval


def test_six_values_worked_by_hand() -> None:
    """The sum of a resample of 0, 0, 0, 1, 1, 1 is binomial(6, 1/2): 0 and 6 once in 64, 1 and 5 six times."""
    assert interval([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], seed=0) == pytest.approx((1 / 6, 5 / 6))


def test_equal_values_and_few_have_no_interval() -> None:
    """All of five pass that failed before: chance in 2 of 32 cases, which is more than 5%."""
    assert interval([0.1] * 100, [0.3] * 100, seed=0) is None, "nothing is as certain as an interval without width"
    assert 2 / 2**FEWEST < 0.05 < 2 / 2 ** (FEWEST - 1)
    assert [interval([1.0] * n, seed=0) for n in range(FEWEST)] == [None] * FEWEST


def test_the_normal_approximation_is_near() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    low, high = interval(values.tolist(), seed=0)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)


def test_weights_are_repetitions_of_a_mean_over_tokens() -> None:
    """A resample's mean is weighted by tokens."""
    values, weights = np.random.default_rng(2).normal(size=(2, 60))
    weights = np.abs(weights) + 0.1
    rng = np.random.default_rng(5)
    draws = [rng.integers(60, size=60) for _ in range(4000)]
    means = [(values[d] * weights[d]).sum() / weights[d].sum() for d in draws]
    expected = np.quantile(means, [0.025, 0.975])
    assert interval(values.tolist(), weights.tolist(), seed=3) == pytest.approx(tuple(expected), abs=0.02)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(3).normal(size=50).tolist()
    assert interval(values, seed=7) == interval(values, seed=7)
    assert interval(values, seed=7) != interval(values, seed=8)


def test_it_holds_the_true_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    held = 0
    for trial in range(400):
        low, high = interval(rng.normal(1.0, 1.0, 60).tolist(), seed=trial, resamples=1000)
        held += low <= 1.0 <= high
    assert 0.91 <= held / 400 <= 0.98
