"""Checks of files: the parts of tables (bytes as written, schema, counters), and the decisions of people."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from opdkit.chat.conversation import LEFT_OUT
from opdkit.commands.check.finding import Finding
from opdkit.config.command_line import quote
from opdkit.config.conditions import FILTERED
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError
from opdkit.store import reviews
from opdkit.store.counters import COUNTERS_KEY, PART_KEY, PLAN_KEY, TURN_COUNT, VERSION_KEY, Counters
from opdkit.store.digests import digest_file
from opdkit.store.plans import stage_dir
from opdkit.store.reading import part_path
from opdkit.store.skip_reasons import FORGOTTEN
from opdkit.store.tables import REVIEWS, Table

Digests = dict[tuple[str, int], set[str]]


@dataclass(frozen=True)
class Part:
    """Part whose file is as it was written: its number of rows and its footer."""

    rows: int
    counters: Counters
    footer: Mapping[bytes, bytes]


def find_unexpected(run: Path, table: Table, parts: int) -> Iterator[tuple[str, str]]:
    """Yield (name, what is wrong) for everything in a table's folder that is not one of its parts."""
    expected = {part_path(run, table.name, k).name for k in range(parts)}
    folder = stage_dir(run, table.stage) / table.name
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name not in expected:
            yield path.name, "not one of the table's parts, but every reader of the folder takes it for one"
        elif not path.is_file():
            yield path.name, "not a file"


def read_part_file(run: Path, table: Table, part: int, document: JSON, digests: Digests) -> Part | str:
    """Return a part, or what is wrong with its file: its bytes, its footer, or its columns.

    `document` is the manifest of the stage. Raises OpdkitError for a file that this user may not read.
    """
    path = part_path(run, table.name, part)
    known, name = digests.get((table.name, part)), f"{table.name}/{part}"
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            schema, count = file.schema_arrow, file.metadata.num_rows
            footer = schema.metadata or {}
            if known is None:
                return "its digest is gone, so its rows cannot be verified"
            if digest_file(path) not in known:
                return "damaged or replaced: not the bytes that were written (xxh3_128)"
    except PermissionError as error:  # it may be intact, so --recompute must not remove it
        raise OpdkitError(f"{path} may not be read by this user: make it readable, then check again") from error
    except (pa.ArrowException, OSError) as error:
        return f"cannot be read: {str(error).splitlines()[0]}"
    if footer.get(VERSION_KEY) != str(table.version).encode():
        version = footer.get(VERSION_KEY, b"none").decode(errors="replace")
        return f"schema version {version}; this opdkit reads {table.version}"
    if footer.get(PLAN_KEY, b"").decode(errors="replace") != document["fingerprint"]:
        return "its plan is not the manifest's"
    if footer.get(PART_KEY, name.encode()) != name.encode():
        return f"its footer says that it is {footer[PART_KEY].decode(errors='replace')}"
    if not schema.equals(table.schema):
        names = set(schema.names) ^ set(table.schema.names)
        odd = sorted(names) or [f.name for f in table.schema if not schema.field(f.name).equals(f)]
        return f"other columns than the table has: {', '.join(odd) or 'their order'}"
    try:
        return Part(count, Counters.from_json(footer[COUNTERS_KEY]), footer)
    except (KeyError, TypeError, ValueError, AttributeError):
        return "the counters in its footer cannot be read"


def find_miscounts(command: str, parts: Mapping[str, Part]) -> Iterator[tuple[str, str]]:
    """Yield (table, what is wrong) for counters that do not match the rows, in one part of a stage's tables."""
    for table, part in parts.items():
        c = part.counters
        if min(c.rows_in, c.rows_out, *c.dropped.values()) < 0:
            yield table, "a counter is negative"
        counts = []  # (what, number counted, number found)
        if table not in ("metrics", "replies"):  # their rows are compared below
            counts.append(("rows", c.rows_out, part.rows))
        if table in ("verdicts", "targets", "metrics"):
            counts.append(("rows in", c.rows_in, c.rows_out + sum(c.dropped.values())))
        if table == "sessions" and command == "extract":
            if "rejected" in parts:
                dropped = sum(n for why, n in c.dropped.items() if not why.startswith((FILTERED, LEFT_OUT, FORGOTTEN)))
                counts.append(("rejected", dropped, parts["rejected"].rows))
            if "turns" in parts and TURN_COUNT in c.counts:
                counts.append(("turns", c.total(TURN_COUNT), parts["turns"].rows))
        if table == "metrics":
            counts.append(("steps", c.total("steps") - c.total("steps left out"), part.rows))
        if table == "replies":
            counts.append(("replies", c.total("replies"), part.rows))
        for what, number, there in counts:
            if number != there:
                yield table, f"{what}: {number:,} counted, {there:,} found"


def check_decisions(run: Path, turns: set[int] | None) -> Iterator[Finding]:
    """Yield what is wrong with the file of decisions, and with the decisions in it.

    `turns` are the hashes of the ids of the run's turns, None if some could not be read.
    """
    where = reviews.reviews_dir(run)
    finding = partial(Finding, REVIEWS.stage, table=REVIEWS.name)
    for path in sorted(where.iterdir()) if where.is_dir() else ():
        if not (path.name in (reviews.FILE, reviews.TORN) or path.match(reviews.OLD_FILES)):
            yield finding("not a file of decisions", key=path.name, todo=f"move it out of {where}")
    try:
        readable = reviews.ReviewLog(run).all_reviews()
    except OpdkitError as error:
        yield finding(str(error), todo="put it back from a copy, or decide again")
        return
    for review in readable:
        if (problem := reviews.find_problem(review)) is not None:
            yield finding(problem, key=review.turn_id, todo=f"decide on it again, `opdkit review {quote(run)}`")
    for name in sorted({review.turn_id for review in readable}):
        if turns is not None and hash(name) not in turns:
            todo = "it changes nothing: extract the logs that it was made on, or withdraw it"
            yield finding("a decision on a missing turn", key=name, todo=todo)
