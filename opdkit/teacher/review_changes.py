"""Review decisions in the targets: a decision changes the rows of its turn and no others.

The last bits of a log-prob depend on the other turns in the batch. So a part is first scored with the verdicts of the
votes. Then each turn whose hint people decided is scored by itself, and its new rows replace the old ones. So all other
rows stay bit-identical to those of a part without decisions. Rewards are not read by any model. Where people decided
only rewards, the existing rows get the new rewards and nothing is scored.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from opdkit.config.fields import JSON
from opdkit.store.counters import read_inputs
from opdkit.store.reading import part_path, read_arrow
from opdkit.store.reviews import apply_review, decision
from opdkit.teacher.examples import JudgedSession, JudgedTurn, Row, choose_candidates


def apply_decisions(verdict: Row, decisions: JSON) -> Row:
    """Return a verdict after applying the decisions of people (turn_id -> decision)."""
    return apply_review(verdict, decision(verdict["turn_id"], decisions.get(verdict["turn_id"], {})))


def _scores_differ(before: Row, after: Row, select: str) -> bool:
    """Return whether two verdicts lead to different rows of log-probs: other hints to score, or no row at all."""
    if any(verdict["hint"] is None and verdict["reward"] is None for verdict in (before, after)):
        return before != after
    return choose_candidates(before, select) != choose_candidates(after, select)


def find_turns_to_rescore(sessions: list[JudgedSession], decisions: JSON, select: str) -> Iterator[JudgedSession]:
    """Yield each turn whose log-probs a decision changes, as a session with only this turn and its decided verdict.

    `sessions` have the verdicts of the votes; `select` is --teacher-hint.
    """
    for session, turns in sessions:
        for turn, verdict in turns:
            after = apply_decisions(verdict, decisions)
            if _scores_differ(verdict, after, select):
                yield JudgedSession(session, [JudgedTurn(turn, after)])


def update_rewards(
    run: Path, part: int, sessions: list[JudgedSession], decisions: JSON, select: str
) -> pa.Table | None:
    """Return the existing targets of a part with the decided rewards; None without targets or if log-probs change."""
    path = part_path(run, "targets", part)
    if not path.exists():
        return None
    previous = read_inputs(path).get("reviews", {})
    rewards: dict[str, int | None] = {}
    for verdict in (judged.verdict for session in sessions for judged in session.turns):
        before, after = (apply_decisions(verdict, made) for made in (previous, decisions))
        if _scores_differ(before, after, select):
            return None
        rewards[verdict["turn_id"]] = after["reward"]
    table = read_arrow(run, "targets", part)
    rows = zip(table["turn_id"].to_pylist(), table["written"].to_pylist(), strict=True)
    # A written reply has no reward: nobody has reacted to it.
    values = [rewards[turn_id] if written is None else None for turn_id, written in rows]
    place = table.schema.get_field_index("reward")
    column = pa.array(values, table.schema.field(place).type)
    return table.set_column(place, table.schema.field(place), column)
