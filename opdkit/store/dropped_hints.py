"""Hints that `opdkit teacher --check-hints` dropped: the teacher stage, exports and rollouts leave them out."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from opdkit.config.fields import JSON
from opdkit.store.plans import find_outdated_upstream, manifest
from opdkit.store.reading import has_stage, read_part
from opdkit.store.tables import HINT_CHECKS

DROPPED = NO_BETTER, WORSE = "no better than without", "worse than without"


def has_hint_checks(run: Path) -> bool:
    """Return True if the teacher stage tests the hints of the verdicts that are there now."""
    if not has_stage(run, "teacher") or HINT_CHECKS.name not in manifest(run, "teacher")["plan"]["schemas"]:
        return False
    return find_outdated_upstream(run, "teacher") is None


def read_hint_checks(run: Path, part: int) -> dict[str, list[JSON]]:
    """Return turn_id -> its rows of `hint_checks`; {} where hints are not tested.

    Raises OpdkitError where they are, but not in this part yet.
    """
    return by_turn(read_part(run, HINT_CHECKS.name, part) if has_hint_checks(run) else ())


def by_turn(rows: Iterable[JSON]) -> dict[str, list[JSON]]:
    """Return turn_id -> its rows of `hint_checks`, in their order."""
    checks = defaultdict[str, list[JSON]](list)
    for row in rows:
        checks[row["turn_id"]].append(row)
    return checks


def without_dropped(verdict: JSON, checks: Sequence[JSON]) -> JSON:
    """Return the verdict of the votes without the hints that its rows of `hint_checks` drop.

    Its hint is then the first of those that stay. Without any, the turn has no hint, and `hint_status` says why.
    """
    kept = [row["hint"] for row in checks if row["status"] not in DROPPED]
    if len(kept) == len(checks):
        return verdict
    first = {"hint": kept[0]} if kept else {"hint": None, "hint_status": checks[0]["status"]}
    return verdict | {"hints": kept} | first
