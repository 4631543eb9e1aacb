"""The first pass over the inputs: digests, formats, and where every unit lies, so that each part can be read alone.

A unit is what `--limit` and `--sessions-per-part` count: a non-blank line of the formats that hold one conversation a
line, a session of pi, a logged session id of OpenClaw-RL. Units are numbered over all inputs in order; part k is the
units [k * size, (k + 1) * size). Line formats are found again by one byte offset a part; sessions and ids, whose lines
may lie anywhere, by an index in a temporary SQLite file. So memory does not grow with the inputs.
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from opdkit.errors import ConfigError, OpdkitError
from opdkit.logs import READERS
from opdkit.logs.conversation import JSON, Line, Unreadable
from opdkit.logs.detect import UNKNOWN, detect
from opdkit.logs.inputs import Input, compression, is_damage, lines, open_plain
from opdkit.logs.openclaw_rl import VOTES, is_votes, logged_id
from opdkit.logs.parse import parse
from opdkit.store import file_digest

AUTO = "auto"
DAMAGED = "damaged archive"
_LONGEST_NAME = 200  # characters of a logged session id that go into ours
_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE id (scope INTEGER, key TEXT, unit INTEGER, seen INTEGER, PRIMARY KEY (scope, key)) WITHOUT ROWID;
CREATE TABLE unit (number INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE line (unit INTEGER, input INTEGER, offset INTEGER, number INTEGER, PRIMARY KEY (unit, input, offset))
    WITHOUT ROWID;
"""
# How often an id has come up in its scope, this time included, and the unit where it came up first.
_COUNT_ID = """INSERT INTO id VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET seen = seen + 1 RETURNING unit, seen"""
_EVERYWHERE = -1  # the scope of OpenClaw-RL ids: records of one session may lie in several inputs


class Mark(NamedTuple):
    """Where a unit begins."""

    offset: int  # bytes into the unpacked input
    line: int  # from 1


@dataclass
class Surveyed:
    """What the first pass knows of one input. Its units are [first, first + count)."""

    input: Input
    number: int
    stat: tuple[int, ...]
    first: int
    format: str | None = None  # None: empty, or set aside, and then without units
    count: int = 0
    sha256: str = ""
    problem: Unreadable | None = None  # why it was set aside; with a format: why its last unit is no line
    plain: Path | None = None  # where it lies unpacked, if it had to be
    marks: dict[int, Mark] = field(default_factory=dict)  # line formats: where the first unit of each part begins

    def pinned(self) -> JSON:
        """What the plan says about it."""
        return {"position": self.number, "source": self.input.source, "bytes": self.stat[0], "sha256": self.sha256,
                "format": self.format}  # fmt: skip

    @property
    def set_aside(self) -> bool:
        return self.format is None and self.problem is not None

    def readable(self) -> int:
        """Number of its first unit that has no lines, or the end of its units."""
        return self.first + self.count - (self.problem is not None)


@dataclass
class Survey:
    """All inputs after the first pass."""

    inputs: list[Surveyed]
    index: sqlite3.Connection
    line_limit: int  # bytes
    units: int


def survey(inputs: Sequence[Input], format: str, part_size: int, line_limit: int, scratch: Path) -> Survey:  # noqa: A002
    """Read every input once. Raises ConfigError for one that was named and that no reader, or more than one, knows."""
    index = sqlite3.connect(scratch / "index.sqlite", isolation_level=None)
    index.executescript(_SCHEMA)
    done = Survey([], index, line_limit, 0)
    with ThreadPoolExecutor(1) as digester:
        for number, entry in enumerate(inputs):
            digest = digester.submit(file_digest, entry.path)  # hashing lets other threads run beside it
            found = Surveyed(entry, number, stat_of(entry.path), done.units)
            index.execute("BEGIN")
            _survey_one(found, done, format, part_size, scratch)
            index.execute("COMMIT")
            found.sha256 = digest.result()
            check_unchanged(found)
            done.inputs.append(found)
            done.units += found.count
    return done


def stat_of(path: Path) -> tuple[int, ...]:
    """What changes when a file does: size, time of change, inode."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def check_unchanged(found: Surveyed) -> None:
    """Raise OpdkitError when the file is not the one that the first pass has seen."""
    now = stat_of(found.input.path)
    if now != found.stat:
        raise OpdkitError(
            f"{found.input.source} changed while it was read ({found.stat[0]:,} bytes before, {now[0]:,} now). "
            "Copy the log to where nothing writes to it, and extract the copy."
        )


def _survey_one(found: Surveyed, done: Survey, format: str, part_size: int, scratch: Path) -> None:  # noqa: A002
    source, limit = found.input.source, done.line_limit
    if found.stat[0] == 0:
        return
    try:
        found.format = format if format != AUTO else _detected(found.input, limit)
    except Unreadable as why:
        if found.input.given and why.reason != VOTES:
            remedy = "; --format names the format" if why.reason == UNKNOWN else ""
            raise ConfigError(f"{source}: {why.reason} ({why.detail}){remedy}") from None
        found.problem = why
        return
    grouping = READERS[found.format].grouping
    if grouping != "line" and compression(found.input.path):
        found.plain = scratch / f"plain-{found.number}.jsonl"
        with _noting_damage(found), open_plain(found.input.path) as packed, found.plain.open("wb") as plain:
            while chunk := packed.read1(1 << 16):  # `read` would lose what it holds when the archive breaks off
                plain.write(chunk)
    with _noting_damage(found), open_plain(found.plain or found.input.path) as handle:
        numbered = lines(handle, source, limit)
        if grouping == "line":
            _scan_lines(found, numbered, part_size)
        elif grouping == "session":
            _scan_sessions(found, numbered, done.index)
        else:
            _scan_ids(found, numbered, done.index)
    found.count += found.problem is not None


def _detected(entry: Input, limit: int) -> str:
    try:
        with open_plain(entry.path) as handle:
            return detect(entry.source, (line for _, line in lines(handle, entry.source, limit)))
    except Exception as error:
        if is_damage(error):
            raise Unreadable(DAMAGED, str(error)) from None
        raise


@contextlib.contextmanager
def _noting_damage(found: Surveyed) -> Iterator[None]:
    """What was read before a compressed stream breaks off counts; that it does is a unit of its own."""
    try:
        yield
    except Exception as error:
        if not is_damage(error):
            raise
        found.problem = Unreadable(DAMAGED, f"{error}; what came before it was read")


def _scan_lines(found: Surveyed, numbered: Iterator[tuple[int, Line]], part_size: int) -> None:
    unit = found.first
    found.marks[unit] = Mark(0, 1)
    try:
        for offset, line in numbered:
            if unit % part_size == 0:
                found.marks[unit] = Mark(offset, line.number)
            unit += 1
    finally:
        found.count = unit - found.first


def _scan_sessions(found: Surveyed, numbered: Iterator[tuple[int, Line]], index: sqlite3.Connection) -> None:
    for offset, line in numbered:
        name = _header(line)
        if name is None and found.count:
            continue
        name = name or f"line{line.number}"
        unit = found.first + found.count
        _, seen = index.execute(_COUNT_ID, (found.number, name, unit)).fetchone()
        index.execute("INSERT INTO unit VALUES (?, ?)", (unit, name if seen == 1 else f"{name}#{seen}"))
        index.execute("INSERT INTO line VALUES (?, ?, ?, ?)", (unit, found.number, offset, line.number))
        found.count += 1


def _header(line: Line) -> str | None:
    """The id of the session that begins on this line; None where none does."""
    if b'"session"' not in line.data:
        return None
    try:
        record = parse(line)
    except Unreadable:
        return None
    if record.get("type") != "session":
        return None
    logged = record.get("id")
    return f"line{line.number}" if logged in (None, "") else _escaped(str(logged))


def _scan_ids(found: Surveyed, numbered: Iterator[tuple[int, Line]], index: sqlite3.Connection) -> None:
    for offset, line in numbered:
        name = _logged_name(line)
        unit = found.first + found.count
        seen = 1
        if name is not None:
            unit, seen = index.execute(_COUNT_ID, (_EVERYWHERE, name, unit)).fetchone()
        if seen == 1:
            index.execute("INSERT INTO unit VALUES (?, ?)", (unit, name))
            found.count += 1
        index.execute("INSERT INTO line VALUES (?, ?, ?, ?)", (unit, found.number, offset, line.number))


def _logged_name(line: Line) -> str | None:
    """The session id of a record; None for a line that is none and so is a unit of its own."""
    try:
        record = parse(line)
    except Unreadable:
        return None
    return None if is_votes(record) else _escaped(logged_id(record))


def _escaped(logged: str) -> str:
    """A logged id as part of ours. `#` is where we count; no two ids become the same."""
    if len(logged) > _LONGEST_NAME:
        logged = f"{logged[:_LONGEST_NAME]}~{hashlib.sha256(logged.encode()).hexdigest()[:16]}"
    return logged.replace("%", "%25").replace("#", "%23")
