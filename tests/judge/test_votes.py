"""Tests of how reward votes become a reward."""

import math
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdkit.judge.votes import Reward, choose_reward

VOTE_LISTS = st.lists(st.sampled_from([1, 0, -1, None]), min_size=1, max_size=9)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1, 1, -1, 1, 0], Reward(1, "ok", 0.6)),
        ([1, -1], Reward(0, "tie", 0.0)),
        ([1, None, None], Reward(None, "no_quorum", None)),
        ([None, None], Reward(None, "failed", None)),
        ([1, 0], Reward(0, "tie", 0.5)),
        ([1, -1, 0], Reward(0, "tie", 1 / 3)),
        ([-1], Reward(-1, "ok", 1.0)),
        ([0, 0, 1], Reward(0, "ok", 2 / 3)),
        ([1, None], Reward(1, "ok", 1.0)),  # exactly half
        ([1, 1, None, None, None], Reward(None, "no_quorum", None)),
        ([-1, -1, 1, None, None], Reward(-1, "ok", 2 / 3)),
    ],
)
def test_worked_by_hand(scores: list[int | None], expected: Reward) -> None:
    """A failed vote does not count as 0, and one valid vote of three is no quorum."""
    found = choose_reward(scores)
    assert (found.reward, found.status) == (expected.reward, expected.status)
    assert found.agreement == pytest.approx(expected.agreement)


@given(VOTE_LISTS)
def test_the_order_of_the_votes_does_not_matter(scores: list[int | None]) -> None:
    assert {choose_reward(list(p)) for p in permutations(scores[:5])} == {choose_reward(scores[:5])}


@given(VOTE_LISTS)
def test_mirrored_votes_give_the_mirrored_reward(scores: list[int | None]) -> None:
    found, mirrored = choose_reward(scores), choose_reward([None if s is None else -s for s in scores])
    assert mirrored.status == found.status
    assert mirrored.reward == (None if found.reward is None else -found.reward)
    assert mirrored.agreement == found.agreement


@given(VOTE_LISTS)
def test_a_failed_vote_never_counts_as_zero(scores: list[int | None]) -> None:
    """Failed votes change nothing while at least half are valid; otherwise there is no reward."""
    found = choose_reward(scores)
    valid = [s for s in scores if s is not None]
    if 2 * len(valid) < len(scores) or not valid:
        assert found.reward is None
        assert found.agreement is None
    else:
        assert found == choose_reward(valid)


def right_after(m: int, p: float) -> float:
    """Return P(reward of m votes is right): votes are right with p, errors and labels are uniformly distributed."""
    total = 0.0
    for label in (1, 0, -1):
        wrong, wronger = (v for v in (1, 0, -1) if v != label)
        for a in range(m + 1):
            for b in range(m - a + 1):
                c = m - a - b
                ways = math.factorial(m) // (math.factorial(a) * math.factorial(b) * math.factorial(c))
                if choose_reward([label] * a + [wrong] * b + [wronger] * c).reward == label:
                    total += ways * p**a * ((1 - p) / 2) ** (b + c) / 3
    return total


@pytest.mark.parametrize(
    ("m", "accuracy"),
    [(1, 0.700), (3, 0.816), (5, 0.874), (7, 0.927), (9, 0.957), (11, 0.973), (15, 0.990), (21, 0.998)],
)
def test_the_voting_curve(m: int, accuracy: float) -> None:
    assert round(right_after(m, 0.7), 3) == accuracy
