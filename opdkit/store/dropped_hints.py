"""Hints that `opdkit teacher --check-hints` dropped: the teacher stage, exports and rollouts leave them out."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from opdkit.config.fields import JSON
from opdkit.store.plans import find_redone_upstream, has_stage, manifest

DROPPED = NO_BETTER, WORSE = "no better than without", "worse than without"


def has_hint_checks(run: Path) -> bool:
    """Return True if the teacher stage tests hints, and was computed from the verdicts that are there now."""
    if not has_stage(run, "teacher") or "hint_checks" not in manifest(run, "teacher")["plan"]["schemas"]:
        return False
    return find_redone_upstream(run, "teacher") is None


def by_turn(rows: Iterable[JSON]) -> dict[str, list[JSON]]:
    """Return turn_id -> its rows, in their order."""
    rows_of: defaultdict[str, list[JSON]] = defaultdict(list)
    for row in rows:
        rows_of[row["turn_id"]].append(row)
    return rows_of


def remove_dropped_hints(verdict: JSON, checks: Sequence[JSON]) -> JSON:
    """Return a verdict without the hints that `checks`, its rows of the table hint_checks, drop.

    The first hint that stays becomes `hint`. If none stays, `hint` is None and `hint_status` says why. The new field
    `dropped` maps each dropped hint to its status.
    """
    dropped = {row["hint"]: row["status"] for row in checks if row["status"] in DROPPED}
    if not dropped:
        return verdict
    kept = [row["hint"] for row in checks if row["hint"] not in dropped]
    first = {"hint": kept[0]} if kept else {"hint": None, "hint_status": checks[0]["status"]}
    return verdict | {"hints": kept, "dropped": dropped} | first
