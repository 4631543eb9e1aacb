"""The targets of a part of which people have decided something: exactly the turns that they decided on change.

Numbers of turns that are read together depend, in their last bits, on what is read beside them. So the votes' targets
are computed as if nobody had decided anything, and a turn whose hint was decided is scored by itself: what a decision
gives, and that it leaves all other rows as they are to the bit, depends on no other decision and on no history. A part
that is there already is the starting point; only what changed is computed, and a reward costs nothing.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from opdkit.config.fields import JSON
from opdkit.config.teacher import TeacherConfig
from opdkit.store import Counters, part_path, read_arrow, read_counters
from opdkit.store.footers import read_inputs
from opdkit.store.reviews import applied, decision
from opdkit.store.tables import TARGETS, to_arrow
from opdkit.teacher.behavior import OTHER_MODEL, UNROUTED
from opdkit.teacher.examples import NO_SIGNAL, candidates

Row = JSON
JudgedSession = tuple[Row, list[tuple[Row, Row]]]  # with its judged turns, each as (turn, verdict)
Score = Callable[[list[JudgedSession], Counters], list[Row]]

BY_PEOPLE = "decided by people"


@dataclass
class _State:
    """Targets, what was counted, and the decisions that they were computed from."""

    table: pa.Table
    counters: Counters
    decided: JSON


def reviewed_targets(
    config: TeacherConfig, part: int, sessions: list[JudgedSession], decided: JSON, score: Score
) -> tuple[pa.Table, Counters]:
    """The targets of a part and its counters.

    `sessions` come with the verdicts as the judge wrote them, `decided` is what people say of their turns (`decisions`
    in opdkit/store/reviews.py), `score` gives the rows of any sessions.
    """
    judged = {verdict["turn_id"]: (session, turn, verdict) for session, turns in sessions for turn, verdict in turns}
    state = _before(config.run, part)
    verdicts = (verdict for *_, verdict in judged.values())
    if state is None or any(_needs_votes(config, state, verdict, decided) for verdict in verdicts):
        counters = Counters()
        state = _State(to_arrow(TARGETS, score(sessions, counters)), counters, {})
    changed = [name for name in judged if state.decided.get(name, {}) != decided.get(name, {})]
    if not changed:
        return state.table, state.counters
    for name in changed:
        verdict = judged[name][2]
        before, after = (_decided(verdict, some.get(name, {})) for some in (state.decided, decided))
        _change(config, state, judged[name], before, after, score)
    counters = state.counters
    counters.counts[BY_PEOPLE] = Counter({"": len(judged.keys() & decided.keys())})
    counters.counts["with a hint"] = Counter({"": state.table.num_rows - state.table["hint"].null_count})
    counters.dropped = +counters.dropped  # without what is no longer counted
    counters.rows_out = state.table.num_rows
    return _in_order(state.table, list(judged)), counters


def _before(run: Path, part: int) -> _State | None:
    """The part as it is there, computed from other decisions."""
    path = part_path(run, "targets", part)
    if not path.exists():
        return None
    return _State(read_arrow(run, "targets", part), read_counters(path), read_inputs(path).get("reviews", {}))


def _decided(verdict: Row, decided: JSON) -> Row:
    return applied(verdict, decision(verdict["turn_id"], decided))


def _has_signal(verdict: Row) -> bool:
    return verdict["hint"] is not None or verdict["reward"] is not None


def _same_reading(config: TeacherConfig, one: Row, other: Row) -> bool:
    """Whether two verdicts on a turn let the teacher read the same."""
    return candidates(one, config.teacher_hint) == candidates(other, config.teacher_hint)


def _needs_votes(config: TeacherConfig, state: _State, verdict: Row, decided: JSON) -> bool:
    """Whether a turn goes back to what it was by the votes alone, and that is no longer there."""
    name = verdict["turn_id"]
    old, new = state.decided.get(name, {}), decided.get(name, {})
    if old == new:
        return False
    before, after = _decided(verdict, old), _decided(verdict, new)
    if not (_has_signal(verdict) and _has_signal(after) and _same_reading(config, verdict, after)):
        return False
    return not (_same_reading(config, before, after) and pc.any(_mine(state.table, name)).as_py())


def _change(
    config: TeacherConfig, state: _State, judged: tuple[Row, Row, Row], before: Row, after: Row, score: Score
) -> None:
    """Put what one decision gives in the place of what the one before gave."""
    session, turn, _ = judged
    mine = _mine(state.table, before["turn_id"])
    there = state.table.filter(mine)
    others = state.table.filter(pc.invert(mine))
    if there.num_rows and _same_reading(config, before, after) and _has_signal(after):
        state.table = pa.concat_tables([others, _with_reward(there, after["reward"])])
        return
    _uncount(state.counters, (session, turn, before), there.num_rows, score)
    counted = Counters()
    rows = score([(session, [(turn, after)])], counted)
    state.table = pa.concat_tables([others, to_arrow(TARGETS, rows).replace_schema_metadata(others.schema.metadata)])
    state.counters.rows_in += counted.rows_in
    state.counters.dropped.update(counted.dropped)
    # A session is counted once, whatever is scored of it.
    for name, numbers in counted.counts.items():
        if name not in (OTHER_MODEL, UNROUTED):
            state.counters.counts.setdefault(name, Counter()).update(numbers)


def _uncount(counters: Counters, judged: tuple[Row, Row, Row], rows: int, score: Score) -> None:
    """Take a turn that is scored anew out of what was counted: its rows, or the reason why it had none."""
    session, turn, before = judged
    if rows:
        counters.rows_in -= rows
        return
    reasons = Counter({NO_SIGNAL: 1})
    if _has_signal(before):
        again = Counters()
        score([(session, [(turn, before)])], again)
        reasons = again.dropped
    if all(counters.dropped[reason] >= count for reason, count in reasons.items()):
        counters.rows_in -= sum(reasons.values())
        counters.dropped.subtract(reasons)


def _mine(table: pa.Table, turn_id: str) -> pa.ChunkedArray:
    return pc.equal(table["turn_id"], turn_id)


def _with_reward(table: pa.Table, reward: int | None) -> pa.Table:
    """The rows of one turn with another reward; nobody has reacted to what the teacher wrote."""
    values = [reward if written is None else None for written in table["written"].to_pylist()]
    place = table.schema.get_field_index("reward")
    return table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type))


def _in_order(table: pa.Table, turn_ids: list[str]) -> pa.Table:
    """The logged replies in the order of their turns, then those that the teacher wrote."""
    place = {name: n for n, name in enumerate(turn_ids)}
    keys = zip(table["turn_id"].to_pylist(), table["written"].to_pylist(), strict=True)
    ranked = sorted((written is not None, place[name], written or 0, n) for n, (name, written) in enumerate(keys))
    return table.take(pa.array([n for *_, n in ranked], pa.int64())).combine_chunks()
