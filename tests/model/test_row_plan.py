"""Tests of opdkit/model/row_plan.py: what a plan reads, and which pass each row continues from."""

from hypothesis import given
from hypothesis import strategies as st

from opdkit.model.row_plan import Rows, plan_rows
from opdkit.model.tree import Plan

# Few ids, so that sequences often begin alike.
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12)
LONG = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400)), min_size=1, max_size=8)


def paths(plan: Plan[Rows]) -> list[tuple[int, ...]]:
    """Return the path of ids to each node, itself last, from what the passes keep."""
    ways, kept = list[tuple[int, ...]](), dict[int, tuple[int, ...]]()
    for i, rows in enumerate(plan.passes):
        for ids, start, after in zip(rows.ids, rows.starts, rows.after, strict=True):
            before = kept[after] if after >= 0 else ()
            assert len(before) == start
            ways += [before + ids[: n + 1] for n in range(len(ids))]
            kept[i] = before + ids
    return ways


def prefixes(sequences: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(s[: i + 1]) for s in sequences for i in range(len(s))}


def test_a_trunk_and_its_branches_by_hand():
    """The trunk is cut at its forks; the branches are read at the end, rows of similar length together."""
    a, b, c, d, e, f = (range(10 * n, 10 * n + 10) for n in range(6))
    trunk, reply, hinted = [*a, *b, *c, *d], [*a, *b, *e], [*a, *f]
    plan = plan_rows([hinted, trunk, reply], pack_tokens=100)
    assert plan.passes == (
        Rows(ids=(tuple(a),), starts=(0,), after=(-1,)),
        Rows(ids=(tuple(b),), starts=(10,), after=(0,)),
        Rows(ids=((*c, *d),), starts=(20,), after=(1,)),
        Rows(ids=(tuple(f), tuple(e)), starts=(10, 20), after=(0, 1)),
    )
    assert (plan.tokens, plan.saved) == (60, 30)
    assert plan.nodes(0, 8, 12) == [8, 9, 40, 41]


def test_rows_of_one_fork_by_hand():
    a, b, c, d, e = (range(10 * n, 10 * n + 10) for n in range(5))
    plan = plan_rows([[*a, *b, *b], [*a, *c], [*a, *d], [*a, *b, *e]], pack_tokens=100, one_fork=True)
    assert all(len(set(rows.after)) == 1 for rows in plan.passes)
    assert [len(rows.ids) for rows in plan.passes] == [1, 1, 2, 2]


def test_hints_that_begin_alike_are_rows_of_the_fork_before_them():
    """A few common tokens are read again; many are read once, in a branch that is read as a trunk."""
    trunk, alike = list(range(400)), [1000, 1001]
    hinted = [trunk[:200] + alike + list(range(n, n + 100)) for n in (2000, 3000)]
    plan = plan_rows([trunk, *hinted], pack_tokens=512)
    assert plan.tokens == 400 + 2 + 2 * 100 + 2
    assert [len(rows.ids) for rows in plan.passes] == [1, 3] or [len(rows.ids) for rows in plan.passes] == [1, 1, 2]
    alike = list(range(1000, 1100))
    hinted = [trunk[:200] + alike + list(range(n, n + 100)) for n in (2000, 3000)]
    assert plan_rows([trunk, *hinted], pack_tokens=512).tokens == 400 + 100 + 2 * 100


@given(sequences=SEQUENCES, pack=st.integers(1, 40), one_fork=st.booleans())
def test_each_row_goes_on_from_what_comes_before_it(sequences, pack, one_fork):
    plan = plan_rows(sequences, pack, one_fork=one_fork)
    ways = paths(plan)
    for i, ids in enumerate(sequences):
        nodes = plan.nodes(i, 0, len(ids))
        assert [ways[n] for n in nodes] == [tuple(ids[: k + 1]) for k in range(len(ids))]
    assert set(ways) == prefixes(sequences)
    assert len(ways) == plan.tokens == sum(map(len, plan.passes))
    assert plan.tokens + plan.saved == sum(map(len, sequences))


@given(sequences=SEQUENCES, pack=st.integers(1, 40), one_fork=st.booleans())
def test_padding_enters_no_state(sequences, pack, one_fork):
    """No row continues from a pass of several rows, or of one token."""
    passes = plan_rows(sequences, pack, one_fork=one_fork).passes
    for after in {a for rows in passes for a in rows.after} - {-1}:
        assert len(passes[after].ids) == 1
        assert len(passes[after]) > 1
    for rows in passes:
        padded = len(rows.ids) * max(map(len, rows.ids))
        assert padded <= min(pack, 1.05 * len(rows)) or len(rows.ids) == 1
        assert len({after < 0 for after in rows.after}) == 1
        assert len(set(rows.after)) == 1 or not one_fork


@given(drawn=LONG, pack=st.integers(1, 600))
def test_few_tokens_are_read_again(drawn, pack):
    """At most 5% of the tokens are read again, and one per row if a fork directly follows another."""
    sequences = [[1] * (80 * fork + 1) + [2 + n] * length for n, (fork, length) in enumerate(drawn)]
    nodes = len(prefixes(sequences))
    assert nodes <= plan_rows(sequences, pack).tokens <= 1.05 * nodes + len(sequences)


@given(sequences=SEQUENCES, pack=st.integers(1, 40), random=st.randoms(use_true_random=False))
def test_the_order_of_the_sequences_changes_nothing(sequences, pack, random):
    shuffled = random.sample(sequences, len(sequences))
    assert plan_rows(shuffled, pack).passes == plan_rows(sequences, pack).passes


def test_a_session_of_many_turns_is_no_deep_recursion():
    """There is a fork at each of 1,500 turns, one below the other."""
    turns = 1500
    sequences = [[0] * (2 * k + 2) + [1, 1] for k in range(turns)]
    plan = plan_rows(sequences, pack_tokens=512)
    assert plan.tokens <= 1.05 * turns * 4 + turns
    assert len(plan.passes) < 1.5 * turns
    assert max(len(rows.ids) * max(rows.starts) for rows in plan.passes) <= 32 * 512
