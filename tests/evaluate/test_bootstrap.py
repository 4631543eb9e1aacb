"""Tests of the percentile bootstrap and the test of a change: by hand, against plain loops, and how often they hold."""

import math
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdkit.evaluate.bootstrap import FEWEST, compute_chance_of_rise, interval, score_rise


def test_six_values_worked_by_hand() -> None:
    """The sum of a resample of 0, 0, 0, 1, 1, 1 is binomial(6, 1/2): 0 and 6 once in 64, 1 and 5 six times."""
    assert interval([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], seed=0) == pytest.approx((1 / 6, 5 / 6))


def test_equal_values_and_few_have_no_interval() -> None:
    """That all of five prompts change in the same direction is chance in 2 of 32 cases, more than 5%."""
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


def test_another_seed_draws_other_resamples() -> None:
    values = np.random.default_rng(3).normal(size=50).tolist()
    assert interval(values, seed=7) != interval(values, seed=8)


def test_it_holds_the_true_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    held = 0
    for trial in range(400):
        low, high = interval(rng.normal(1.0, 1.0, 60).tolist(), seed=trial, resamples=1000)
        held += low <= 1.0 <= high
    assert 0.91 <= held / 400 <= 0.98


def test_few_differences_are_counted_by_their_signs() -> None:
    """All five differences that are not 0 rose, by different shares, which is one of 32 outcomes of chance."""
    rose = np.array([1.0, 1.0, 0.75, 0.0, 1.0, 0.25])
    assert compute_chance_of_rise(rose) == 1 / 32
    assert compute_chance_of_rise(-rose) == compute_chance_of_rise(0 * rose) == 1.0
    assert compute_chance_of_rise(np.array([0.5, -0.25, 0.5])) == 2 / 8
    ten_of_twelve = np.array([1.0] * 10 + [-1.0] * 2)
    assert compute_chance_of_rise(ten_of_twelve) == pytest.approx(sum(math.comb(12, n) for n in (10, 11, 12)) / 2**12)


def test_many_differences_and_noisy_ones_have_the_normal_probability() -> None:
    many, small = np.array([1.0] * 14 + [-1.0] * 6), np.full(8, 0.25)
    assert compute_chance_of_rise(many) == pytest.approx(NormalDist().cdf(-score_rise(many)))
    assert compute_chance_of_rise(many) == pytest.approx(sum(math.comb(20, n) for n in range(14, 21)) / 2**20, abs=0.01)
    assert compute_chance_of_rise(small) == 1 / 256
    assert compute_chance_of_rise(small, noise=2.0) == pytest.approx(NormalDist().cdf(-score_rise(small, 2.0)))


@given(st.lists(st.integers(-4, 4), min_size=6, max_size=10))
def test_chance_calls_a_rise_no_more_often_than_it_says(quarters: list[int]) -> None:
    """The oracle: of all possible signs of the differences, at most 5% get a probability of 5% or less."""
    sizes = np.abs(quarters) / 4
    found = [compute_chance_of_rise(sizes * signs) <= 0.05 for signs in product((-1, 1), repeat=len(sizes))]
    assert np.mean(found) <= 0.05
