"""Tests that a step's common prefixes are read once, within a token budget, and each turn by one process."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdkit.model.scoring import PromptResponse
from opdkit.model.tree import plan_passes
from opdkit.train.forwards import Tree, build_chains, build_trees, deal, pack_side_by_side, plan_forwards

LENGTHS = st.lists(st.integers(1, 500), min_size=1, max_size=40)
WORDS = st.lists(st.integers(0, 2), min_size=1, max_size=12)
WAYS = ({"packed": True}, {"packed": False}, {"packed": False, "chains": True})
TURNS = st.lists(st.tuples(st.sampled_from("abc"), WORDS, WORDS), min_size=1, max_size=12)


def turns_of(drawn) -> tuple[list[PromptResponse], list[str]]:
    return [PromptResponse(prompt, reply) for _, prompt, reply in drawn], [session for session, _, _ in drawn]


def nodes(sequences, tree: Tree) -> int:
    return plan_passes(
        [sequences[i].prompt_ids + sequences[i].response_ids for i in tree.replies], pack_tokens=1 << 20
    ).tokens


def test_a_session_is_a_tree() -> None:
    a, b, c = [1, 2], [3, 4], [5]
    sequences = [PromptResponse(a + b + c, a), PromptResponse(a, b), PromptResponse(a, c)]
    assert build_trees(sequences, ["s", "s", "t"], 100) == [Tree((1, 0), 7), Tree((2,), 3)]
    assert build_trees(sequences, ["s"] * 3, 100) == [Tree((1, 2, 0), 10)], "counted from the turn before: 8 in truth"


def test_a_session_beyond_the_budget_is_parted_but_not_below_its_longest_turn() -> None:
    """Prompts are not read again: turns that a long turn contains cost no tokens beside it."""
    replies = [[10 + n] * 5 for n in range(6)]
    sequences = [PromptResponse([1] * 5 + [i for r in replies[:n] for i in r], replies[n]) for n in range(6)]
    assert [t.tokens for t in build_trees(sequences, ["s"] * 6, 35)] == [35]
    assert [t.replies for t in build_trees(sequences, ["s"] * 6, 10)] == [tuple(range(6))]
    alone = build_trees(sequences, ["s"] * 6, 20, strict=True)
    assert [t.replies for t in alone] == [(0, 1, 2), (3,), (4,), (5,)], "beyond the budget, each turn is alone"
    apart = [PromptResponse([n] * 5, [n]) for n in range(6)]
    assert [t.replies for t in build_trees(apart, ["s"] * 6, 12)] == [(0, 1), (2, 3), (4, 5)]


def test_turns_that_continue_each_other_are_a_chain() -> None:
    """Each turn begins with all tokens of the turn before; a second reply to a prompt begins another chain."""
    a, b, c = [1, 2], [3, 4], [5]
    first, other = PromptResponse(a, b), PromptResponse(a, c)
    sequences = [PromptResponse(a + b + c, a), other, first, PromptResponse(a + c + b, c), PromptResponse(a, b)]
    assert build_chains(sequences, ["s", "s", "s", "s", "t"]) == [Tree((1, 3), 6), Tree((2, 0), 7), Tree((4,), 4)]


@given(drawn=TURNS, budget=st.integers(1, 60), processes=st.integers(1, 4), way=st.sampled_from(WAYS))
def test_each_turn_is_read_once_and_all_processes_run_as_many_forwards(drawn, budget, processes, way) -> None:
    """No turn is lost or read twice, and a forward is beyond the budget only if it is a single tree."""
    sequences, sessions = turns_of(drawn)
    shares = [plan_forwards(sequences, sessions, budget, p, processes, **way) for p in range(processes)]
    forwards = [forward for forwards_of_process, _ in shares for forward in forwards_of_process]
    read = Counter(i for forward in forwards for tree in forward for i in tree.replies)
    assert read == dict.fromkeys(range(len(sequences)), 1)
    assert len({len(forwards_of_process) for forwards_of_process, _ in shares}) == 1
    for forward in forwards:
        assert all(len({sessions[i] for i in tree.replies}) == 1 for tree in forward)
        assert all(nodes(sequences, tree) <= tree.tokens for tree in forward)
        sizes = [tree.tokens for tree in forward]
        held = sum(sizes) if way["packed"] else len(sizes) * max(sizes, default=0)
        assert held <= budget or len(forward) == 1
    assert {tokens for _, tokens in shares} == {sum(tree.tokens for forward in forwards for tree in forward)}


@pytest.mark.parametrize("packed", [True, False])
def test_what_turns_have_in_common_counts_once_only_where_it_is_shared(packed) -> None:
    sequences = [PromptResponse([1] * 50, [2] * 10), PromptResponse([1] * 50 + [2] * 10 + [3] * 20, [4] * 20)]
    _, tokens = plan_forwards(sequences, ["s", "s"], 1000, 0, 1, packed=packed)
    assert tokens == (100 if packed else 160)


def test_the_longest_are_dealt_first() -> None:
    assert deal([5, 9, 4, 1], 2) == [[1, 3], [0, 2]]
    assert deal([7], 3) == [[0], [], []]


@given(lengths=LENGTHS, budget=st.integers(1, 1000))
def test_trees_stand_side_by_side_without_padding(lengths, budget) -> None:
    groups = pack_side_by_side(lengths, budget)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    sums = [sum(lengths[i] for i in group) for group in groups]
    assert all(s <= budget for s, group in zip(sums, groups, strict=True) if len(group) > 1)
    assert sum(s <= budget / 2 for s in sums) <= 1, "two half empty ones would have been one"
