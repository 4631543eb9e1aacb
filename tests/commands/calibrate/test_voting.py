"""Tests of voting curves: against enumerated subsets, exact figures, and the function that decides rewards."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdkit.commands.calibrate.voting import (
    SCORES,
    choose_sizes,
    combine_distributions,
    combine_rewards,
    count_votes,
    find_independent_rewards,
    find_subset_rewards,
    find_worth_paying,
)
from opdkit.judge.votes import choose_reward

VOTES = st.lists(st.sampled_from(SCORES), min_size=1, max_size=7)
HOW = ("last", "mean", "min")


@given(VOTES, st.data())
def test_subsets_are_all_subsets(scores, data) -> None:
    """The distribution equals that of all subsets, enumerated and decided by the judge stage's own function."""
    k = data.draw(st.integers(1, len(scores)))
    written = Counter(choose_reward(some).reward for some in itertools.combinations(scores, k))
    found = find_subset_rewards(count_votes(scores), k)
    assert {r: p for r, p in found.items() if p} == pytest.approx({r: n / written.total() for r, n in written.items()})


@given(VOTES, st.randoms(use_true_random=False))
def test_all_the_votes_give_the_stored_reward_in_any_order(scores, random) -> None:
    assert find_subset_rewards(count_votes(scores), len(scores)) == {choose_reward(scores).reward: 1.0}
    assert count_votes(random.sample(scores, len(scores))) == count_votes(scores)


@pytest.mark.parametrize("k", [0, 4])
def test_more_votes_than_there_are(k: int) -> None:
    with pytest.raises(ValueError, match="of 3"):
        find_subset_rewards(count_votes([1, 0, None]), k)


@pytest.mark.parametrize(
    ("k", "expected"),
    [(1, 0.700), (3, 0.816), (5, 0.874), (7, 0.927), (9, 0.957), (11, 0.973), (15, 0.990), (21, 0.998)],
)
def test_the_exact_curve(k: int, expected: float) -> None:
    """Votes are right with 0.7, errors are even over the other two, labels uniform, as in docs/calibrate.md."""
    shares = []
    for label in (-1, 0, 1):
        probabilities = {score: 0.7 if score == label else 0.15 for score in (-1, 0, 1)}
        shares.append(find_independent_rewards(probabilities, k)[label])
    assert sum(shares) / 3 == pytest.approx(expected, abs=6e-4)


def test_subsets_of_independent_votes_are_independent_votes() -> None:
    """Averaged over m votes, the subset distribution equals that of k votes, so the measured curve has no bias."""
    probabilities, m, k = {1: 0.5, 0: 0.2, -1: 0.2, None: 0.1}, 4, 3
    expected = Counter[int | None]()
    for votes in itertools.product(SCORES, repeat=m):
        p = math.prod(probabilities[v] for v in votes)
        for reward, q in find_subset_rewards(count_votes(votes), k).items():
            expected[reward] += p * q
    assert dict(expected) == pytest.approx(dict(find_independent_rewards(probabilities, k)))


@given(st.lists(st.sampled_from(SCORES), max_size=5), st.sampled_from(HOW))
def test_a_session_of_certain_turns_is_certain(rewards, how: str) -> None:
    found = combine_distributions(how, [{reward: 1.0} for reward in rewards])
    assert found == {combine_rewards(how, rewards): 1.0}


@pytest.mark.parametrize(("how", "expected"), [("last", 1), ("mean", 0), ("min", -1)])
def test_the_reward_of_a_session(how: str, expected: int) -> None:
    assert combine_rewards(how, [0, -1, 1, None]) == expected
    assert combine_rewards(how, [None]) is None


def test_uncertain_turns_worked_by_hand() -> None:
    turns = [{1: 0.5, -1: 0.5}, {1: 0.8, None: 0.2}]
    assert combine_distributions("last", turns) == pytest.approx({1: 0.8 + 0.1, -1: 0.1})
    assert combine_distributions("min", turns) == pytest.approx({1: 0.5, -1: 0.5})
    assert combine_distributions("mean", turns) == pytest.approx({1: 0.5, 0: 0.4, -1: 0.1})


def test_sizes() -> None:
    assert choose_sizes(5) == [1, 2, 3, 4, 5]
    assert choose_sizes(12) == [*range(1, 10), 11, 12]
    assert choose_sizes(255)[-2:] == [31, 255]
    assert choose_sizes(0) == []


@pytest.mark.parametrize(
    ("points", "tolerance", "expected"),
    [
        ([(1, 0.7, 1.0), (3, 0.81, 1.0), (5, 0.82, 1.0)], 0.01, 3),
        ([(1, 0.7, 1.0), (3, 0.81, 1.0), (5, 0.82, 1.0)], 0.0, 5),
        ([(1, 0.9, 0.5), (3, 0.9, 0.8), (5, 0.9, 0.81)], 0.01, 3),  # equal accuracy, but more turns have a reward
        ([(1, math.nan, 0.0)], 0.5, None),
    ],
)
def test_votes_worth_paying(points, tolerance: float, expected: int | None) -> None:
    assert find_worth_paying(points, tolerance, 100) == expected


def test_a_few_labels_do_not_say_how_many_votes_are_worth_paying() -> None:
    points = [(1, 0.4, 1.0), (3, 0.4, 1.0)]
    assert [find_worth_paying(points, tolerance, 99) for tolerance in (0.0, 0.01, 0.02)] == [None, None, 1]
