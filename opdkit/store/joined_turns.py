"""Turns of a part joined with their sessions, verdicts, decisions and targets. No other module joins these tables."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from opdkit.config.fields import JSON
from opdkit.store.dropped_hints import by_turn, has_hint_checks, remove_dropped_hints
from opdkit.store.reading import count_parts, count_sessions_within, is_written, read_arrow
from opdkit.store.reviews import Review, Reviews, apply_review, read_reviews_in_force

# Table -> the columns to read, None for all of them. A table that is not a key is not read.
Columns = Mapping[str, Sequence[str] | None]
JUDGED: Columns = {"sessions": None, "turns": None, "verdicts": None}
CHECKED: Columns = {**JUDGED, "hint_checks": None}  # verdicts without the hints that `--check-hints` dropped
LOGGED: Columns = {"sessions": None, "turns": None}


@dataclass(frozen=True)
class JoinedTurn:
    """Turn with the rows that the stages wrote about it, restricted to the requested columns."""

    session: JSON
    turn: JSON
    verdict: JSON | None  # of the votes, without dropped hints if `hint_checks` is read; None: not judged
    review: Review | None  # the decision in force
    targets: Sequence[Any]  # rows, in which lists of numbers are arrays

    @property
    def turn_id(self) -> str:
        return str(self.turn["turn_id"])

    @property
    def session_id(self) -> str:
        return str(self.turn["session_id"])

    @property
    def index(self) -> int:
        """Index of the reply in the session's messages, from 0."""
        return int(self.turn["message_index"])

    @property
    def skip_reason(self) -> str | None:
        """Return why the turn is not trainable; None if it is. --good and --bad make turns without a reaction so."""
        return None if self.verdict is not None else self.turn["skip_reason"]

    @property
    def final_verdict(self) -> JSON | None:
        """Verdict with the decision in force applied, as every stage after the judge needs it."""
        return None if self.verdict is None else apply_review(self.verdict, self.review)


def joined_turns(
    run: Path,
    part: int,
    columns: Columns = JUDGED,
    *,
    limit: int | None = None,
    reviews: Reviews | None = None,
    turn_ids: Collection[str] | None = None,
    partial: bool = False,
) -> Iterator[JoinedTurn]:
    """Yield the turns of a part in the order of the turns table, in which the turns of a session are adjacent.

    `limit` keeps the first `limit` sessions of the run, `turn_ids` only these turns. `reviews` are the decisions in
    force; if None, they are read from the run. With `partial`, a table whose part is not written yet counts as empty;
    otherwise this raises what `read_arrow` raises.
    """

    def read(table: str) -> pa.Table | None:
        if table not in columns or (partial and not is_written(run, table, part)):
            return None
        arrow = read_arrow(run, table, part, columns[table])
        return arrow if turn_ids is None or table == "sessions" else _keep(arrow, "turn_id", turn_ids)

    turns, sessions, verdicts, targets = (read(table) for table in ("turns", "sessions", "verdicts", "targets"))
    if turns is None or sessions is None:
        return
    sessions = sessions.slice(0, count_sessions_within(run, part, limit))
    if turn_ids is not None:
        sessions = _keep(sessions, "session_id", turns["session_id"].to_pylist())
    session_of = {row["session_id"]: row for row in sessions.to_pylist()}
    verdict_of = {row["turn_id"]: row for row in verdicts.to_pylist()} if verdicts is not None else {}
    if "hint_checks" in columns and has_hint_checks(run) and (tested := read("hint_checks")) is not None:
        checks = by_turn(tested.to_pylist())
        verdict_of = {name: remove_dropped_hints(row, checks.get(name, ())) for name, row in verdict_of.items()}
    lists = [] if targets is None else [field.name for field in targets.schema if pa.types.is_list(field.type)]
    targets_of = {} if targets is None else by_turn(read_rows_with_arrays(targets, lists))
    reviews = read_reviews_in_force(run) if reviews is None else reviews
    for turn in turns.to_pylist():
        if turn["session_id"] in session_of:
            name = turn["turn_id"]
            yield JoinedTurn(session_of[turn["session_id"]], turn, verdict_of.get(name), reviews.get(name),
                             targets_of.get(name, ()))  # fmt: skip


def all_joined_turns(
    run: Path, columns: Columns = JUDGED, *, stage: str = "judge", reviews: Reviews | None = None, **options: Any
) -> Iterator[JoinedTurn]:
    """Yield the turns of all parts of `stage`, in order. The other arguments are those of `joined_turns`."""
    reviews = read_reviews_in_force(run) if reviews is None else reviews
    for part in range(count_parts(run, stage)):
        yield from joined_turns(run, part, columns, reviews=reviews, **options)


def by_session(turns: Iterable[JoinedTurn]) -> Iterator[list[JoinedTurn]]:
    """Yield the turns of each session, as `joined_turns` or `all_joined_turns` yields them."""
    return (list(own) for _, own in groupby(turns, lambda turn: turn.session_id))


def read_rows_with_arrays(table: pa.Table, lists: Sequence[str]) -> list[JSON]:
    """Return the rows of a table, in which the columns `lists` are NumPy arrays, not lists of Python numbers."""
    rows: list[JSON] = table.drop_columns(lists).to_pylist()
    for name in lists:
        for row, cell in zip(rows, table[name], strict=True):
            row[name] = None if cell.values is None else cell.values.to_numpy(zero_copy_only=False)
    return rows


def _keep(table: pa.Table, column: str, values: Collection[str]) -> pa.Table:
    return table.filter(pc.is_in(table[column], pa.array(sorted(set(values)), pa.string())))
