"""`opdkit forget`: take people's sessions out of all nights, and train again what has learned from them.

What is left is what the nights would be if these sessions had never been read: their rows leave the tables, the nights
since the first of them are done again, one after the other, and sessions that come up later are left out as well.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from opdkit.commands.night.home import Home, Night
from opdkit.config.conditions import find_rejection, parse_filters
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError
from opdkit.store.atomic import move_into_place, remove_entries, temporary_file, write_text
from opdkit.store.counters import COUNTERS_KEY, Counters
from opdkit.store.digests import file_digest, forget_digest, record_digest
from opdkit.store.disk import disk_errors_explained
from opdkit.store.logged_fields import read_logged_fields
from opdkit.store.plans import stage_dir
from opdkit.store.reading import has_stage, is_complete, part_count, part_path
from opdkit.store.tables import TABLES, encodings

FORGOTTEN = "forgotten"  # reason of the rows that left
_TABLES = {"judge": ("escalated", "verdicts"), "extract": ("turns", "sessions")}  # sessions last: they say who it was


def forget(home: Home, where: Sequence[str]) -> int:
    """Take the sessions that `where` describes out of all nights, and reset the nights since the first of them.

    Return how many sessions it was. Whoever calls this finishes the nights. Raises OpdkitError where no session is
    described so. A kill in between loses nothing: `finish_forgetting` goes on.
    """
    found = sum(len(find_sessions(night, [where])) for night in home.nights())
    if not found and list(where) not in conditions(home):
        raise OpdkitError(f"the nights have read no session with {' and '.join(where)}; a value that --redact replaced "
                          "cannot be named")  # fmt: skip
    write_conditions(home, [*(each for each in read_forgotten(home) if each["where"] != list(where)),
                            {"where": list(where), "done": False}])  # fmt: skip
    finish_forgetting(home)
    return found


def finish_forgetting(home: Home) -> None:
    """Do what is left of each `forget` that a kill has cut off."""
    forgotten = read_forgotten(home)
    undone = [each["where"] for each in forgotten if not each["done"]]
    nights = home.nights() if undone else []
    first = next((n for n, night in enumerate(nights) if find_sessions(night, undone)), None)
    if first is not None:
        home.go_back(nights[first].number)
        for night in reversed(nights[first:]):  # the first one last: while it has sessions, all is done again
            reset(night)
            drop_sessions(night, undone)
    write_conditions(home, [each | {"done": True} for each in forgotten])


def read_forgotten(home: Home) -> list[JSON]:
    """Return what was forgotten: conditions (`where`), and whether all sessions that they describe are gone."""
    path = home.path / "forgotten.json"
    return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def write_conditions(home: Home, forgotten: Sequence[JSON]) -> None:
    if forgotten != read_forgotten(home):
        write_text(home.path / "forgotten.json", json.dumps(forgotten, indent=2) + "\n")


def conditions(home: Home) -> list[list[str]]:
    """Return the conditions of all that was forgotten: lists, each of which describes sessions."""
    return [each["where"] for each in read_forgotten(home)]


def reset(night: Night) -> None:
    """Remove all of a night but what was read and judged; its record last: without it the night is still to be done."""
    keep = ("log", "news", "night.json")
    remove_entries([path for path in sorted(night.folder.iterdir()) if path.name not in keep])
    night.forget_record()


def find_sessions(night: Night, described: Sequence[Sequence[str]]) -> list[str]:
    """Return the ids of the sessions of a night that one of the descriptions fits."""
    if not is_complete(night.log, "extract"):  # its sessions are dropped when they are read
        return []
    filters = [parse_filters(where, "--where") for where in described]
    return [fields.session_id for fields in read_logged_fields(night.log)
            if any(find_rejection(each, fields, fields.format) is None for each in filters)]  # fmt: skip


def drop_sessions(night: Night, described: Sequence[Sequence[str]]) -> None:
    """Remove the rows of the sessions that one of the descriptions fits from the tables of a night's log."""
    found = find_sessions(night, described)
    for stage, tables in _TABLES.items() if found else ():
        for table in tables:
            for path, part in parts_of(night.log, stage, table):
                with disk_errors_explained(path):
                    rewrite(path, table, part, found)
    drop_reviews(night.log, found)


def drop_reviews(run: Path, sessions: Sequence[str]) -> None:
    """Remove the decisions of reviewers about these sessions."""
    for path in (run / "judge" / "reviews").glob("*.jsonl") if sessions else ():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not any(f'"{name}:' in line for name in sessions)]
        if kept != lines:
            write_text(path, "".join(kept))


def parts_of(run: Path, stage: str, table: str) -> Iterator[tuple[Path, int]]:
    for part in range(part_count(run, stage) if has_stage(run, stage) else 0):
        if (path := part_path(run, table, part)).exists():
            yield path, part


def rewrite(path: Path, table: str, part: int, sessions: Sequence[str]) -> None:
    """Write one part again without the rows of these sessions, with their number among its dropped rows."""
    arrow = pq.read_table(path)
    ids = arrow["session_id"] if "session_id" in arrow.column_names else pc.replace_substring_regex(
        arrow["turn_id"], pattern=r":\d+$", replacement="")  # fmt: skip
    kept = arrow.filter(pc.invert(pc.is_in(ids, pa.array(sessions, pa.string()))))
    if gone := arrow.num_rows - kept.num_rows:
        counters = Counters.from_json((arrow.schema.metadata or {})[COUNTERS_KEY])
        counters.rows_out -= gone
        counters.drop(FORGOTTEN, gone)
        kept = kept.replace_schema_metadata(kept.schema.metadata | {COUNTERS_KEY: counters.to_json().encode()})
        home, before = stage_dir(path.parents[2], TABLES[table].stage), file_digest(path)
        with temporary_file(path) as temporary:
            options = encodings(kept.schema) | {"compression": "zstd", "write_page_checksum": True}
            pq.write_table(kept, temporary, **options)
            record_digest(home, table, part, file_digest(temporary))
            move_into_place(temporary, path)
        forget_digest(home, table, part, before)
