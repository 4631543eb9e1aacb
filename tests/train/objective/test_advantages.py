"""Tests of the advantages of tokens and turns: numbers worked by hand, and properties that hold for any input."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from positions import NAN, logits, mask, t

from opdkit.train.objective.advantages import (
    apply_praise,
    behavior_weights,
    normalise_in_groups,
    penalise_overlong,
    support_advantages,
    teacher_advantages,
)

REWARDS = st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 1.0]), st.integers(0, 3)), max_size=20)


@pytest.mark.parametrize(("teacher", "old", "clip", "expected"), [
    (-0.5, -2.3, 0.0, 1.8), (-0.5, -2.3, 1.0, 1.0), (-1.2, -1.0, 1.0, -0.2), (-9.0, -1.0, 1.0, -1.0),
])  # fmt: skip
def test_teacher_advantage_worked_by_hand(teacher: float, old: float, clip: float, expected: float) -> None:
    assert teacher_advantages(t(teacher), t(old), mask(1), clip).item() == pytest.approx(expected, abs=1e-12)


def test_teacher_equal_to_student_is_advantage_zero_exactly() -> None:
    old = logits(1000, 0).float().log_softmax(-1)
    everywhere = torch.ones(1000, dtype=torch.bool)
    assert torch.equal(teacher_advantages(old[:, 0].clone(), old[:, 0], everywhere, 1.0), torch.zeros(1000))
    assert torch.equal(support_advantages(old.clone(), old, everywhere, 1.0), torch.zeros_like(old))


# -- supports -------------------------------------------------------------------------------------------------------


def test_support_advantages_worked_by_hand() -> None:
    """Old probabilities 0.5 and 0.25 give weights 2/3 and 1/3; the teacher's are 0.75 and 0.01 (clipped at C = 1)."""
    old, teacher = t(0.5, 0.25).log()[None], t(0.75, 0.01).log()[None]
    expected = [2 / 3 * math.log(1.5), -1 / 3]
    assert support_advantages(old, teacher, mask(1), 1.0)[0].tolist() == pytest.approx(expected, abs=1e-12)
    unclipped = support_advantages(old, teacher, mask(1), 0.0)[0].tolist()
    assert unclipped == pytest.approx([expected[0], math.log(0.04) / 3], abs=1e-12)


def test_a_position_without_a_support_has_no_advantage() -> None:
    """Missing values are NaN, and the mask turns them into 0."""
    values = torch.full((2, 3), NAN, dtype=torch.float64)
    assert torch.equal(support_advantages(values, values, mask(0, 0), 1.0), torch.zeros(2, 3, dtype=torch.float64))


def test_support_of_the_whole_vocabulary_is_the_expected_advantage() -> None:
    old, teacher = logits(20, 1).log_softmax(-1), logits(20, 2).log_softmax(-1)
    summed = support_advantages(old, teacher, torch.ones(20, dtype=torch.bool), 0.0).sum(-1)
    minus_kl = -(old.exp() * (old - teacher)).sum(-1)
    torch.testing.assert_close(summed, minus_kl, rtol=0, atol=1e-12)


def test_praise_worked_by_hand() -> None:
    """The odds of 1/2 become 4 to 1. The other tokens share the rest as before: 1/4 becomes 1/10."""
    target, weight = apply_praise(t(0.5, 0.25).log()[None], mask(1, 0)[None])
    assert target.exp()[0].tolist() == pytest.approx([0.8, 0.1])
    assert weight.tolist() == pytest.approx([5.5])


# -- rewards --------------------------------------------------------------------------------------------------------


def test_group_normalisation_worked_by_hand() -> None:
    normalised = normalise_in_groups([1, -1, 1, 0], ["p"] * 4, keep_lone=True)
    assert normalised == pytest.approx([0.7833, -1.3056, 0.7833, -0.2611], abs=5e-5)


def test_group_means_without_the_standard_deviation() -> None:
    """As in Dr. GRPO, only the mean 0.25 is subtracted, so a group that nearly agrees does not weigh more."""

    def centred(rewards, *, lone=True):
        return normalise_in_groups(rewards, ["p"] * len(rewards), keep_lone=lone, divide=False)

    assert centred([1, -1, 1, 0]) == [0.75, -1.25, 0.75, -0.25]
    assert centred([1, 0.9]) == pytest.approx([0.05, -0.05])
    assert centred([0.1, 0.1, 0.1]) == [0, 0, 0]  # their mean is not exactly 0.1
    assert centred([-1]) == [-1]
    assert centred([-1], lone=False) == [0]


def test_groups_do_not_mix_and_keep_their_places() -> None:
    mixed = normalise_in_groups([1, 5, -1, 5, -1, 3], ["a", "b", "a", "b", "c", "d"], keep_lone=True)
    assert mixed == pytest.approx([1 / math.sqrt(2), 0, -1 / math.sqrt(2), 0, -1, 3])
    assert normalise_in_groups([-1], ["c"], keep_lone=False) == [0.0]


@given(rows=REWARDS)
def test_a_normalised_group_has_mean_0_and_std_1_or_is_all_0(rows: list[tuple[float, int]]) -> None:
    normalised = normalise_in_groups([r for r, _ in rows], [g for _, g in rows], keep_lone=False)
    for group in {g for _, g in rows}:
        values = t(*[n for n, (_, g) in zip(normalised, rows, strict=True) if g == group])
        assert values.mean().item() == pytest.approx(0, abs=1e-12)
        assert torch.equal(values, torch.zeros_like(values)) or values.std().item() == pytest.approx(1)


@pytest.mark.parametrize(("length", "expected"), [
    (1, 0), (800, 0), (850, -0.25), (950, -0.75), (1000, -1), (1001, -1), (1100, -1),
])  # fmt: skip
def test_overlong_table(length: int, expected: float) -> None:
    assert penalise_overlong(length, 1000, 200) == expected
    assert penalise_overlong(length, 0, 200) == 0


@pytest.mark.parametrize(("length", "expected"), [
    (1, 0), (800, 0), (850, -0.0625), (900, -0.25), (950, -0.5625), (1000, -1), (1001, -1), (1100, -1),
])  # fmt: skip
def test_quadratic_overlong_table(length: int, expected: float) -> None:
    assert penalise_overlong(length, 1000, 200, "quadratic") == expected
    assert penalise_overlong(length, 0, 200, "quadratic") == 0


# -- the behaviour policy -------------------------------------------------------------------------------------------


def test_behavior_weights_worked_by_hand() -> None:
    """The student's 0.2 over the behaviour policy's 0.4, 0.1 and 0.01 is 0.5, 2 and 20, the last cut to the cap 2."""
    old, behavior = t(0.2, 0.2, 0.2, 0.2).log(), torch.cat([t(0.4, 0.1, 0.01).log(), t(NAN)])
    assert behavior_weights(old, behavior, 2.0).tolist() == pytest.approx([0.5, 2.0, 2.0, 1.0])
    assert behavior_weights(old, behavior, 0.0).tolist() == [1, 1, 1, 1]


def test_behavior_weights_do_not_overflow() -> None:
    assert behavior_weights(t(-1), t(-2000), 2.0).item() == pytest.approx(2.0)
