"""Tests of confusion matrices, kappa and calibration: by hand, against scikit-learn, and properties of any labels."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from opdkit.commands.calibrate.agreement import (
    CLASSES,
    HintScore,
    Level,
    Matrix,
    accuracy,
    kappa,
    measure_calibration,
    score_classes,
    score_hints,
    score_majority,
)

PAIRS = st.lists(st.tuples(st.sampled_from(CLASSES), st.sampled_from(CLASSES)), min_size=1, max_size=40)
WEIGHTS = ("none", "linear", "quadratic")


def count_confusions(labels: Sequence[int], rewards: Sequence[int]) -> Matrix:
    """Return the confusion matrix: rows are labels, columns rewards."""
    matrix: Matrix = metrics.confusion_matrix(labels, rewards, labels=CLASSES).astype(float)
    return matrix


def test_kappa_worked_by_hand() -> None:
    """Of 100 pairs 45 + 15 agree; by chance .6 * .7 + .4 * .3 = .54 would; kappa is (.6 - .54) / (1 - .54)."""
    matrix = np.array([[45.0, 0, 15], [0, 0, 0], [25, 0, 15]])
    assert accuracy(matrix) == pytest.approx(0.6)
    assert kappa(matrix) == pytest.approx((0.60 - 0.54) / (1 - 0.54))


@pytest.mark.filterwarnings("ignore:`y1`, `y2` and `labels`")
@given(PAIRS, st.sampled_from(WEIGHTS))
def test_everything_equals_scikit_learn(pairs: list[tuple[int, int]], weights: str) -> None:
    labels, rewards = zip(*pairs, strict=True)
    matrix = count_confusions(labels, rewards)
    assert accuracy(matrix) == pytest.approx(metrics.accuracy_score(labels, rewards))
    with np.errstate(all="ignore"):
        theirs = metrics.cohen_kappa_score(
            labels, rewards, labels=CLASSES, weights=None if weights == "none" else weights
        )
    assert kappa(matrix, weights) == pytest.approx(theirs, nan_ok=True)
    precision, recall, _, support = metrics.precision_recall_fscore_support(
        labels, rewards, labels=CLASSES, zero_division=np.nan
    )
    for i, found in enumerate(score_classes(matrix)):
        assert found.labelled == support[i]
        for ours, other in ((found.precision, precision[i]), (found.recall, recall[i])):
            assert ours is None if np.isnan(other) else ours == pytest.approx(other)


@given(PAIRS, st.randoms(use_true_random=False), st.sampled_from(WEIGHTS))
def test_kappa_is_in_range_and_blind_to_order_and_to_who_is_who(pairs, random, weights: str) -> None:
    value = kappa(count_confusions(*zip(*pairs, strict=True)), weights)
    assert np.isnan(value) or -1 - 1e-12 <= value <= 1
    shuffled = random.sample(pairs, len(pairs))
    assert kappa(count_confusions(*zip(*shuffled, strict=True)), weights) == pytest.approx(value, nan_ok=True)
    swapped = [(b, a) for a, b in pairs]
    assert kappa(count_confusions(*zip(*swapped, strict=True)), weights) == pytest.approx(value, nan_ok=True)


def test_many_matrices_at_once_are_each_by_itself() -> None:
    stack = np.random.default_rng(0).integers(0, 9, (5, 3, 3)).astype(float)
    stack[3] = 0
    for weights in WEIGHTS:
        assert kappa(stack, weights) == pytest.approx([float(kappa(m, weights)) for m in stack], nan_ok=True)
    assert np.isnan(accuracy(stack)[3])


def test_calibration_worked_by_hand() -> None:
    levels, error = measure_calibration([1.0, 0.6, 1.0, 0.6, 1.0], [True, True, True, False, False])
    assert levels == [Level(0.6, 2, 0.5), Level(1.0, 3, pytest.approx(2 / 3))]
    assert error == pytest.approx((2 * 0.1 + 3 * (1 / 3)) / 5)
    assert measure_calibration([], []) == ([], None)


def test_many_levels_of_agreement_are_put_together_in_tenths() -> None:
    said = [n / 21 for n in range(11, 22)]
    levels, _ = measure_calibration(said, [True] * len(said))
    assert [level.turns for level in levels] == [2, 2, 2, 2, 3]
    assert sum(level.turns for level in levels) == len(said)


def test_hints_where_something_was_wanted() -> None:
    assert score_hints([True, True, True, False], [True, False, True, True]) == HintScore(4, 3, 3, 2 / 3, 2 / 3)
    assert score_hints([False], [False]) == HintScore(1, 0, 0, None, None)


@pytest.mark.parametrize(("sessions", "has_interval"), [(1, False), (5, False), (6, True)])
def test_few_sessions_give_the_gain_no_interval(sessions: int, has_interval: bool) -> None:
    """Six sessions are needed: in five, all gains have the same sign by chance one time in 16."""
    other_S, weighed_S = (np.tile(count_confusions([1, 1], [-1, reward]).ravel(), (sessions, 1)) for reward in (-1, 1))
    weighed_S[0] = count_confusions([1, 1], [1, 1]).ravel()
    gain = score_majority("weighed", weighed_S, "none", 0, other_S).gain
    assert (gain is not None and gain[0] == 0.5) if has_interval else gain is None


@pytest.mark.parametrize(("right", "has_interval"), [([1, 3], False), ([1, 2, 3, 3, 2], False), ([1, 3] * 3, True)])
def test_few_sessions_that_differ_give_no_figure_an_interval(right: list[int], has_interval: bool) -> None:
    """`right`: right rewards per session, of four. A resample of two sessions takes only three values: no interval."""
    labels = [1, -1, 1, -1]
    each_S = np.stack([count_confusions(labels, [label if k < n else -label for k, label in enumerate(labels)]).ravel()
                       for n in right])  # fmt: skip
    found = score_majority("stored", each_S, "none", 0, each_S)
    assert (found.accuracy_interval is not None, found.kappa_interval is not None) == (has_interval, has_interval)
    alike = score_majority("stored", each_S[[0] * len(right)], "none", 0, each_S)
    assert alike.accuracy_interval is not None, "Wilson's counts each session once"


def test_a_judge_without_an_error_has_a_kappa_without_an_interval() -> None:
    """All resamples have kappa 1, but ten sessions do not make it certain, so there is no interval."""
    each_S = np.tile(count_confusions([1, -1], [1, -1]).ravel(), (10, 1))
    found = score_majority("stored", each_S, "none", 0, each_S)
    assert (found.kappa, found.kappa_interval, found.gain) == (1.0, None, None)
    assert found.accuracy_interval == pytest.approx((0.7225, 1.0), abs=1e-4)


def test_sessions_without_a_reward_change_no_interval() -> None:
    few_S = np.tile(count_confusions([1], [1]).ravel(), (4, 1))
    more_S = np.concatenate([few_S, np.zeros((4, 9))])
    found = score_majority("stored", more_S, "none", 0, more_S)
    assert found == score_majority("stored", few_S, "none", 0, few_S)
    assert found.accuracy_interval == pytest.approx((0.510, 1.0), abs=1e-3)
    nobody_S = np.zeros((4, 9))
    assert score_majority("stored", nobody_S, "none", 0, nobody_S).accuracy_interval is None


def test_sessions_without_a_reward_narrow_no_interval() -> None:
    each_S = np.tile(count_confusions([1, -1], [1, -1]).ravel(), (10, 1))
    more_S = np.concatenate([each_S, np.zeros((20, 9))])
    assert score_majority("stored", more_S, "none", 0, more_S) == score_majority("stored", each_S, "none", 0, each_S)
    mixed_S = np.stack([*each_S[:4], count_confusions([1, -1], [1, 1]).ravel(), *np.zeros((20, 9))])
    found = score_majority("stored", mixed_S, "none", 0, mixed_S)
    assert (found.accuracy_interval, found.kappa_interval) == (None, None), "five sessions are too few"
