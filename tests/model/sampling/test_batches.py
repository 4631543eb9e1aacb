"""Tests of opdkit/model/sampling/batches.py: each sample comes once, within the budget, and groups share a prefix."""

import math

from hypothesis import example, given
from hypothesis import strategies as st

from opdkit.model.sampling.batches import (
    MAX_SAMPLES,
    Batch,
    PromptGroup,
    count_samples_per_copy,
    group_prompts,
    plan_batches,
)
from opdkit.model.tree import count_common

COMMON = list(range(100, 140))
OTHER = list(range(200, 240))


def test_two_questions_about_one_turn_are_read_together() -> None:
    prompts = [[*COMMON, 1, 2, 3], [*OTHER, 1, 2, 3], [*COMMON, 4, 5], [*OTHER, 4, 5]]
    assert sorted(group_prompts(prompts), key=lambda g: g.prompts) == [
        PromptGroup(40, (0, 2), 45),
        PromptGroup(40, (1, 3), 45),
    ]


def test_a_system_prompt_alone_makes_no_group() -> None:
    """The common prefix of unrelated turns is short compared with the rest of their prompts."""
    prompts = [[7, 8, 9, *COMMON], [7, 8, 9, *OTHER]]
    assert [g.prompts for g in group_prompts(prompts)] == [(0,), (1,)]


def test_a_prompt_goes_with_the_neighbour_that_it_shares_most_with() -> None:
    near, far = COMMON + [1] * 20, COMMON + [2] * 20
    prompts = [[*near, 1], [*near, 2], [*far, 1], [*far, 2]]
    assert [(g.prompts, g.prefix) for g in group_prompts(prompts)] == [((0, 1), 60), ((2, 3), 60)]


def test_a_prompt_that_another_begins_with_and_one_that_comes_twice() -> None:
    assert group_prompts([[*COMMON, 1], COMMON, COMMON]) == [PromptGroup(40, (1, 2, 0), 41)]


def test_suffixes_that_are_long_together_are_not_read_together() -> None:
    """Their attention mask would have more elements than sharing the prompt saves."""
    prompts = [list(range(1000)) + [2000 + i] * 600 for i in range(2)]
    assert [len(g.prompts) for g in group_prompts(prompts)] == [1, 1]


def test_nothing_asked() -> None:
    assert group_prompts([]) == []
    assert list(plan_batches([], [], 5, 100)) == []
    assert list(plan_batches([[1, 2]], [0], 5, 100)) == []


def test_votes_share_a_prompt_until_they_would_outweigh_it() -> None:
    assert count_samples_per_copy(1600, 512) == 25  # five votes on each of two questions, and more
    assert count_samples_per_copy(100, 512) == 1
    assert count_samples_per_copy(10**6, 1) == MAX_SAMPLES


@st.composite
def prompts(draw) -> list[list[int]]:
    """Draw prompts over a small alphabet, many of which begin alike."""
    stems = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=4))
    tails = st.lists(st.integers(0, 2), max_size=6)
    return draw(st.lists(st.builds(lambda s, t: s + t, st.sampled_from(stems), tails), max_size=12))


@given(prompts())
def test_groups_hold_every_prompt_once_and_share_what_they_say(asked: list[list[int]]) -> None:
    actual = group_prompts(asked)
    assert sorted(i for g in actual for i in g.prompts) == list(range(len(asked)))
    for group in actual:
        first = asked[group.prompts[0]]
        assert all(count_common(first, asked[i]) >= group.prefix >= 1 for i in group.prompts)
        assert all(len(asked[i]) <= 2 * group.prefix for i in group.prompts)
        assert group.tokens == group.prefix + sum(len(asked[i]) - group.prefix for i in group.prompts)
    assert sum(g.tokens for g in actual) <= sum(map(len, asked))


@given(prompts(), st.integers(1, 5), st.integers(1, 20), st.integers(1, 300))
@example([[0] * 8, [0] * 10], 2, 1, 10)  # two samples that share a prompt are within the budget, single ones are above
def test_lots_hold_every_draw_once_within_the_budget(asked, draws: int, new_tokens: int, budget: int) -> None:
    actual = list(plan_batches(asked, [draws] * len(asked), new_tokens, budget))
    made = [d for batch in actual for shared in batch.shared for d in shared.samples]
    assert sorted(made) == [(i, k) for i in range(len(asked)) for k in range(draws)]
    for batch in actual:
        single = [
            s for s in batch.shared if len(s.samples) == len(s.group.prompts) == 1
        ]  # a single sample is made in any case
        assert batch.rows * batch.slots <= budget or batch.rows == 1
        assert all(s.slots <= budget or s in single for s in batch.shared)
        assert batch.rows * batch.samples <= MAX_SAMPLES
        assert all(s.slots == s.group.tokens + len(s.samples) * new_tokens for s in batch.shared)
        assert batch.slots < 2 * min(s.slots for s in batch.shared)
    sizes = [batch.slots for batch in actual]
    assert sizes == sorted(sizes, reverse=True)
    assert len(actual) <= 1 + math.log2(max(sizes, default=1))


def test_rows_are_as_many_as_the_budget_holds() -> None:
    asked = [[i] * 50 for i in range(8)]
    [batch] = plan_batches(asked, [2] * 8, 25, 350)
    assert (batch.rows, batch.slots, batch.samples) == (3, 100, 2)
    assert isinstance(batch, Batch)
