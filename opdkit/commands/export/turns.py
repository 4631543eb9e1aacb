"""The judged turns of a run, session by session, and why a turn is not exported."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from opdkit.config.fields import JSON
from opdkit.store import Counters
from opdkit.store.joined import joined_turns
from opdkit.store.reviews import Reviews

Row = JSON


class NotExportedError(Exception):
    """This turn has no place in the export. `reason` is the words it is dropped and counted under."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class JudgedTurn:
    """One turn with its session and its verdict."""

    session: JSON
    turn: JSON
    verdict: JSON

    @property
    def turn_id(self) -> str:
        return str(self.turn["turn_id"])

    @property
    def index(self) -> int:
        """Where the reply stands in the session's messages, from 0."""
        return int(self.turn["message_index"])

    @property
    def reward(self) -> int | None:
        reward: int | None = self.verdict["reward"]
        return reward

    @property
    def hint(self) -> str | None:
        hint: str | None = self.verdict["hint"]
        return hint


@dataclass(frozen=True)
class Target:
    """One form of export.

    `rows` turns the judged turns of one session into rows, and counts in `rows_out` the turns that are in them and in
    `dropped`, by their reasons, all others. `schema` gives the columns, from the Arrow type that one message has;
    `suffixes` the kinds of file, the usual one first.
    """

    rows: Callable[[list[JudgedTurn], Counters], Iterator[Row]]
    schema: Callable[[pa.DataType], pa.Schema]
    suffixes: tuple[str, ...] = (".parquet", ".jsonl")


def each(row: Callable[[JudgedTurn], Row]) -> Callable[[list[JudgedTurn], Counters], Iterator[Row]]:
    """`Target.rows` for a target with one row a turn: `row` gives it, or raises NotExportedError."""

    def rows(turns: list[JudgedTurn], counters: Counters) -> Iterator[Row]:
        for turn in turns:
            try:
                found = row(turn)
            except NotExportedError as error:
                counters.drop(error.reason)
            else:
                counters.rows_out += 1
                yield found

    return rows


def judged_turns(
    run: Path, part: int, limit: int | None, reviews: Reviews, counters: Counters
) -> Iterator[list[JudgedTurn]]:
    """The judged turns of a part, a list a session, within the first `limit` sessions of the run.

    `reviews` are the decisions of people that are in force: they win over the votes. All turns are counted in
    `rows_in`; those without a verdict are dropped: for the reason that they cannot be trained on, or as "not judged".
    Raises what `read_part` raises.
    """
    turns = joined_turns(run, part, limit=limit, reviews=reviews)
    for _, group in groupby(turns, key=lambda turn: turn.session_id):
        found = []
        for turn in group:
            counters.rows_in += 1
            if turn.decided is not None:
                found.append(JudgedTurn(turn.session, turn.turn, turn.decided))
            else:
                row = turn.turn
                counters.drop("not judged" if row["trainable"] else row["skip_reason"] or "not trainable")
        yield found


def rewarded(turn: JudgedTurn, wanted: tuple[int, ...]) -> int:
    """The reward of a turn. Raises NotExportedError where it is none of those wanted, or missing."""
    if turn.reward is None:
        raise NotExportedError(f"no reward ({turn.verdict['reward_status']})")
    if turn.reward not in wanted:
        raise NotExportedError(f"reward {turn.reward:+d}" if turn.reward else "reward 0")
    return turn.reward
