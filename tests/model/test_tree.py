"""Tests of opdkit/model/tree.py: what a plan reads, and what each token sees."""

from hypothesis import given
from hypothesis import strategies as st

from opdkit.model.tree import Pass, Plan, plan_passes

# Few ids, so that sequences often begin alike.
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12)


def seen(actual: Plan) -> list[tuple[int, ...]]:
    """Return the path of ids that each node sees, itself last, by simulating the cache, which is cut and grows."""
    ways: list[tuple[int, ...]] = []
    cache: list[int] = []
    for each in actual.passes:
        assert each.prefix <= len(cache)
        del cache[each.prefix :]
        for i, end in enumerate(each.visible_prefix):
            own = [each.ids[j] for j in range(i + 1) if j == i or i < each.subtree_end[j]]
            ways.append((*cache[:end], *own))
        cache += each.ids
        if not each.is_chain:
            del cache[each.prefix :]  # nothing continues from a branch
    return ways


def prefixes(sequences: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(s[: i + 1]) for s in sequences for i in range(len(s))}


# -- by hand --------------------------------------------------------------------------------------------------------

TRUNK, HINTED, REPLY = [1, 2, 3, 4, 5, 6], [1, 2, 9, 3], [1, 2, 3, 4, 7]


def test_a_trunk_and_its_branches_by_hand():
    """The trunk comes first, then both branches in one pass, the last to fork first: 9 tokens instead of 15."""
    actual = plan_passes([HINTED, TRUNK, REPLY], pack_tokens=5)
    assert actual.passes == (
        Pass(
            prefix=0,
            ids=(1, 2, 3, 4, 5, 6),
            positions=(0, 1, 2, 3, 4, 5),
            visible_prefix=(0,) * 6,
            subtree_end=(6,) * 6,
        ),
        Pass(prefix=4, ids=(7, 9, 3), positions=(4, 2, 3), visible_prefix=(4, 2, 2), subtree_end=(1, 3, 3)),
    )
    assert [actual.nodes(i, 0, 9) for i in range(3)] == [[0, 1, 7, 8], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 6]]
    assert actual.nodes(0, 1, 3) == [1, 7]
    assert (actual.tokens, actual.saved) == (9, 6)


def test_what_is_small_is_one_pass_by_hand():
    """All is packed into one pass, in which each token sees itself and its ancestors."""
    actual = plan_passes([HINTED, TRUNK, REPLY], pack_tokens=9)
    assert actual.passes == (
        Pass(
            prefix=0,
            ids=(1, 2, 3, 4, 5, 6, 7, 9, 3),
            positions=(0, 1, 2, 3, 4, 5, 4, 2, 3),
            visible_prefix=(0,) * 9,
            subtree_end=(9, 9, 7, 7, 6, 6, 7, 9, 9),
        ),
    )
    assert not actual.passes[0].is_chain


def test_a_branch_that_is_large_is_a_trunk_by_hand():
    """A large branch is read after the smaller branches that fork later, and before the branches that fork from it."""
    long, short = [1, 2, 8, 8, 8, 8, 8], [1, 2, 8, 8, 9]
    actual = plan_passes([TRUNK, REPLY, long, short], pack_tokens=1)
    assert [(p.prefix, p.ids) for p in actual.passes] == [
        (0, (1, 2, 8, 8, 8, 8, 8)), (4, (9,)), (2, (3, 4, 5, 6)), (4, (7,))
    ]  # fmt: skip
    assert all(p.is_chain for p in actual.passes)


def test_nothing_in_common_is_nothing_saved():
    actual = plan_passes([[1, 2], [3, 4, 5]], pack_tokens=1)
    assert (actual.tokens, actual.saved) == (5, 0)
    assert [p.prefix for p in actual.passes] == [0, 0]


def test_a_prompt_that_differs_early_is_shared_up_to_there():
    """Equal tokens after the fork do not count: a token is shared only if all tokens before it are equal."""
    actual = plan_passes([[1, 5, 6, 7], [2, 5, 6, 7]], pack_tokens=100)
    assert actual.saved == 0


# -- of every tree --------------------------------------------------------------------------------------------------


@given(sequences=SEQUENCES, pack=st.integers(1, 40))
def test_each_token_sees_what_comes_before_it_and_nothing_else(sequences, pack):
    """Each prefix is read once, however many sequences share it."""
    actual = plan_passes(sequences, pack)
    ways = seen(actual)
    for i, ids in enumerate(sequences):
        nodes = actual.nodes(i, 0, len(ids))
        assert [ways[n] for n in nodes] == [tuple(ids[: k + 1]) for k in range(len(ids))]
    assert len(ways) == len(set(ways)) == actual.tokens
    assert set(ways) == prefixes(sequences)
    assert actual.tokens + actual.saved == sum(map(len, sequences))


@given(sequences=SEQUENCES, pack=st.integers(1, 40))
def test_positions_are_depths(sequences, pack):
    actual = plan_passes(sequences, pack)
    positions = [p for each in actual.passes for p in each.positions]
    assert positions == [len(way) - 1 for way in seen(actual)]


@given(sequences=SEQUENCES, pack=st.integers(1, 40))
def test_a_pass_is_within_the_budget_or_in_a_row(sequences, pack):
    """A chain is no longer than a sequence, which would be read at once in any case."""
    for each in plan_passes(sequences, pack).passes:
        assert len(each) <= pack or each.is_chain
        assert each.prefix + len(each) <= max(map(len, sequences)) or len(each) <= pack


@given(sequences=SEQUENCES, pack=st.integers(1, 40), random=st.randoms(use_true_random=False))
def test_the_order_of_the_sequences_changes_nothing(sequences, pack, random):
    shuffled = random.sample(sequences, len(sequences))
    assert plan_passes(shuffled, pack).passes == plan_passes(sequences, pack).passes


@given(sequences=SEQUENCES, pack=st.integers(1, 40), start=st.integers(0, 12), stop=st.integers(0, 12))
def test_some_nodes_are_a_part_of_all(sequences, pack, start, stop):
    actual = plan_passes(sequences, pack)
    assert actual.nodes(0, start, stop) == actual.nodes(0, 0, 12)[start:stop]


def test_a_session_of_many_turns_is_no_deep_recursion():
    """There is a fork at each of 1,500 turns, one below the other."""
    turns = 1500
    sequences = [[0] * (k + 1) + [1] for k in range(turns)]
    actual = plan_passes(sequences, pack_tokens=64)
    assert actual.tokens == turns * 2
    assert len(actual.passes) < turns / 32
