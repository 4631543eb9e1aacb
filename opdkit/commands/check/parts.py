"""The files of a table: all there, nothing else there, each with the bytes, schema and counts it was written with."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from opdkit.chat.conversation import LEFT_OUT
from opdkit.commands.check.finding import Report
from opdkit.config.conditions import FILTERED
from opdkit.config.fields import JSON
from opdkit.store import Counters, part_path
from opdkit.store.digests import file_digest, read_digests
from opdkit.store.footers import COUNTERS_KEY, FILES_KEY, PART_KEY, PLAN_KEY, VERSION_KEY
from opdkit.store.plans import stage_dir
from opdkit.store.tables import Table


@dataclass(frozen=True)
class Part:
    """One part whose file is as it was written: what its footer says."""

    rows: int
    counters: Counters
    footer: Mapping[bytes, bytes]


Digests = dict[tuple[str, int], set[str]]


def digests_of(run: Path, stage: str) -> Digests:
    """The digests that a stage has recorded."""
    return read_digests(stage_dir(run, stage))


def strangers(run: Path, table: Table, parts: int) -> Iterator[tuple[str, str]]:
    """(name, what is wrong) of everything in a table's folder that is none of its parts."""
    expected = {part_path(run, table.name, k).name for k in range(parts)}
    folder = stage_dir(run, table.stage) / table.name
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name not in expected:
            yield path.name, "not one of the table's parts, but every reader of the folder takes it for one"
        elif not path.is_file():
            yield path.name, "not a file"


def missing(run: Path, table: Table, part: int, digests: Digests, after: str | None) -> str | None:
    """What is wrong with a part that is not there, if anything: an unfinished stage is no damage.

    `after` is a table that holds a part computed from it, or together with it.
    """
    if after:
        return f"gone, although {after} has the part that goes with it"
    if (table.name, part) in digests:
        return "gone: it was written once (or killed in the very moment)"
    return None


def look(run: Path, table: Table, part: int, document: JSON, digests: Digests, report: Report) -> Part | str:
    """A part's footer when file and footer are as they were written, or what is wrong with them."""
    path = part_path(run, table.name, part)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            schema, count = file.schema_arrow, file.metadata.num_rows
            footer = schema.metadata or {}
            wrong = _bytes(path, file, table, part, footer, digests, report)
    except (pa.ArrowException, OSError) as error:
        return f"cannot be read: {str(error).splitlines()[0]}"
    if wrong is None:
        wrong = _footer(table, part, schema, footer, document)
    if wrong is not None:
        return wrong
    try:
        counters = Counters.from_json(footer[COUNTERS_KEY])
    except (KeyError, TypeError, ValueError):
        return "the counters in its footer cannot be read"
    return Part(count, counters, footer)


def _bytes(
    path: Path, file: pq.ParquetFile, table: Table, part: int, footer: Mapping[bytes, bytes], digests: Digests,
    report: Report,
) -> str | None:  # fmt: skip
    known = digests.get((table.name, part))
    if known is None and PART_KEY not in footer:
        report.without_digest += 1
        for name in file.schema_arrow.names:  # then at least it can be read, a column at a time
            file.read(columns=[name])
        return None
    if known is None:
        return "its digest is gone, so nobody can say whether these are the rows that were written"
    if file_digest(path) not in known:
        return "damaged or replaced: not the bytes that were written (sha256)"
    return None


def _footer(table: Table, part: int, schema: pa.Schema, footer: Mapping[bytes, bytes], document: JSON) -> str | None:
    if footer.get(VERSION_KEY) != str(table.version).encode():
        found = footer.get(VERSION_KEY, b"none").decode(errors="replace")
        return f"schema version {found}; this opdkit reads {table.version}"
    if footer.get(PLAN_KEY, b"").decode(errors="replace") != document["fingerprint"]:
        return "written under another plan than its manifest's"
    if footer.get(PART_KEY, f"{table.name}/{part}".encode()) != f"{table.name}/{part}".encode():
        return f"it is {footer[PART_KEY].decode(errors='replace')}, under another name"
    if not schema.equals(table.schema):
        names = set(schema.names) ^ set(table.schema.names)
        odd = sorted(names) or [f.name for f in table.schema if not schema.field(f.name).equals(f)]
        return f"other columns than the table has: {', '.join(odd) or 'their order'}"
    return None


def miscounted(stage: str, command: str, parts: Mapping[str, Part]) -> Iterator[tuple[str, str]]:
    """(table, what) where the counters of one part, over the tables of a stage, do not fit the rows that are there."""
    for name, part in parts.items():
        numbers = [part.counters.rows_in, part.counters.rows_out, *part.counters.dropped.values()]
        if min(numbers) < 0:
            yield name, "a counter is negative"
        expected = _expected(name, command, part, parts)
        for what, counted, found in expected:
            if counted != found:
                yield name, f"{what}: {counted:,} counted, {found:,} found"


def _expected(name: str, command: str, part: Part, parts: Mapping[str, Part]) -> Iterator[tuple[str, int, int]]:
    """(what, as counted, as it is found) of one table of a part."""
    c = part.counters
    if name not in ("metrics", "replies"):  # which count turns and prompts
        yield "rows", c.rows_out, part.rows
    if name in ("verdicts", "targets", "metrics"):
        yield "rows in", c.rows_in, c.rows_out + sum(c.dropped.values())
    if name == "sessions" and command == "extract":
        if "rejected" in parts:
            aside = (n for why, n in c.dropped.items() if not why.startswith((FILTERED, LEFT_OUT)))
            yield "rejected", sum(aside), parts["rejected"].rows
        if "turns" in parts and "turns" in c.counts:
            yield "turns", c.total("turns"), parts["turns"].rows
    if name == "metrics":
        yield "steps", c.total("steps"), part.rows
    if name == "replies":
        yield "replies", c.total("replies"), part.rows


def files_pinned(part: Part) -> JSON:
    """The model folders that a part's footer pins; {} in a part of before they were pinned."""
    found: JSON = json.loads(part.footer.get(FILES_KEY, b"{}"))
    return found
