"""Removal of damaged parts and of the parts computed from them, so that the same commands compute them again."""

from collections.abc import Iterable
from pathlib import Path

from opdkit.commands.check.finding import Finding
from opdkit.commands.check.plans import BY_PART, ORDER, tables_of
from opdkit.store.digests import forget_digest
from opdkit.store.plans import stage_dir
from opdkit.store.reading import part_path
from opdkit.store.tables import TABLES

# stage -> the tables that it reads. No stage reads `rejected`.
_READS = {
    "judge": {"sessions", "turns"},
    "teacher": {"sessions", "turns", "verdicts"},
    "train": {"sessions", "targets"},
    "eval": {"sessions", "verdicts", "targets", "metrics"},
}

Gone = set[tuple[str, int]]  # (table, part)


def parts_to_remove(findings: Iterable[Finding], started: Iterable[str]) -> Gone:
    """Return the damaged parts, their primary tables (so that they count as missing), and what was computed from them.

    Each as (table, part).
    """
    damaged: Gone = {(table, f.part) for f in findings if f.part is not None for table in f.gone}
    gone = set(damaged)
    for stage in (s for s in ORDER if s in started):
        names = [table.name for table in tables_of(stage)]
        read = {(part if stage in BY_PART else 0) for table, part in damaged if table in _READS.get(stage, ())}
        computed = {(name, part) for name in names for part in read}
        damaged |= computed
        gone |= computed | {(names[0], part) for table, part in damaged if table in names}
    return gone


def remove_parts(run: Path, gone: Gone) -> list[Path]:
    """Remove parts and their digests, the last stage first; never a model. Return the files that were there.

    A part's primary table goes first: if this is killed half-way, the part is missing, not half there.
    """
    removed = []
    place = {name: n for n, name in enumerate(TABLES)}
    order = {stage: n for n, stage in enumerate(ORDER)}
    for table, part in sorted(gone, key=lambda one: (-order[TABLES[one[0]].stage], one[1], place[one[0]])):
        path = part_path(run, table, part)
        if path.is_file():
            path.unlink()
            removed.append(path)
        forget_digest(stage_dir(run, TABLES[table].stage), table, part)
    return removed
