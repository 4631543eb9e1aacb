"""The first pass over the inputs: digests, formats, and where every part begins, so that each can be read alone.

A part is about `part_bytes` of unpacked log, in whole units; a unit is what `--limit` counts: a non-blank line of the
formats that hold one conversation a line, a session of pi, a logged session id of OpenClaw-RL. Formats with one
conversation a line need no parsing to find a part, only the line ends beside its borders. Sessions and ids, whose lines
may lie anywhere, are found again by an index in a temporary SQLite file. So memory does not grow with the inputs.
"""

import contextlib
import hashlib
import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from opdkit.errors import ConfigError, OpdkitError
from opdkit.logs import READERS
from opdkit.logs.conversation import JSON, Line, Unreadable
from opdkit.logs.detect import UNKNOWN, detect
from opdkit.logs.inputs import Input, compression, is_damage, lines, open_plain
from opdkit.logs.openclaw_rl import VOTES, is_votes, logged_id
from opdkit.logs.parse import parse
from opdkit.logs.shared_survey import SharedSurvey

AUTO = "auto"
DAMAGED = "damaged archive"
_LONGEST_NAME = 200  # characters of a logged session id that go into ours
_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE id (scope INTEGER, key TEXT, unit INTEGER, seen INTEGER, PRIMARY KEY (scope, key)) WITHOUT ROWID;
CREATE TABLE unit (number INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE line (unit INTEGER, input INTEGER, offset INTEGER, number INTEGER, bytes INTEGER,
    PRIMARY KEY (unit, input, offset)) WITHOUT ROWID;
"""
# How often an id has come up in its scope, this time included, and the unit where it came up first.
_COUNT_ID = """INSERT INTO id VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET seen = seen + 1 RETURNING unit, seen"""
_EVERYWHERE = -1  # the scope of OpenClaw-RL ids: records of one session may lie in several inputs
_BLOCK = 1 << 16  # bytes; as many are lost where an archive breaks off
_NEWLINE = ord("\n")


class Mark(NamedTuple):
    """A place between two units. Marks are in the order of the log."""

    input: int
    at: int  # bytes into the unpacked input; where units are sessions or ids, the number of the unit
    line: int = 1  # formats with one conversation a line: the line there, from 1


END = 1 << 62  # `at` behind all units of an input


@dataclass
class Surveyed:
    """What the first pass knows of one input."""

    input: Input
    number: int
    stat: tuple[int, ...]
    format: str | None = None  # None: empty, or set aside, and then without units
    digest: str = ""
    problem: Unreadable | None = None  # why it was set aside; with a format: why its last unit is no line
    plain: Path | None = None  # where it lies unpacked, if it had to be
    size: int = 0  # bytes of the unpacked input that hold whole lines
    chunks: list[tuple[Mark, int]] = field(default_factory=list)  # one conversation a line: where to cut, bytes to next
    units: range = range(0)  # sessions and ids: the units that come up first in this input

    def pinned(self) -> JSON:
        """What the plan says about it."""
        return {"position": self.number, "source": self.input.source, "bytes": self.stat[0], "xxh3_128": self.digest,
                "format": self.format}  # fmt: skip

    def known(self) -> JSON:
        """What other shards need not find out again of an input that is set aside or has a unit a line."""
        problem = self.problem and [self.problem.reason, self.problem.detail]
        return {"format": self.format, "digest": self.digest, "problem": problem, "size": self.size,
                "chunks": [[mark.at, mark.line, size] for mark, size in self.chunks]}  # fmt: skip

    def recall(self, known: JSON) -> None:
        """Take over what `known` has said of the same file."""
        self.format, self.digest, self.size = known["format"], known["digest"], known["size"]
        self.problem = Unreadable(*known["problem"]) if known["problem"] else None
        self.chunks = [(Mark(self.number, at, line), size) for at, line, size in known["chunks"]]

    @property
    def set_aside(self) -> bool:
        return self.format is None and self.problem is not None

    @property
    def path(self) -> Path:
        """Where to read it from."""
        return self.plain or self.input.path

    @property
    def by_line(self) -> bool:
        return self.format is not None and READERS[self.format].grouping == "line"


@dataclass
class Survey:
    """All inputs after the first pass. Part k is the units from `borders[k]` up to `borders[k + 1]`."""

    inputs: list[Surveyed]
    index: Path
    line_limit: int  # bytes
    borders: list[Mark]

    @property
    def parts(self) -> int:
        return max(0, len(self.borders) - 1)


def survey(
    inputs: Sequence[Input],
    format: str,  # noqa: A002
    part_bytes: int,
    line_limit: int,
    limit: int | None,
    scratch: Path,
    shared: SharedSurvey | None = None,
) -> Survey:
    """Read every input once. Raises ConfigError for one that was named and that no reader, or more than one, knows.

    With `shared`, inputs with one conversation a line that another shard has read are not read again.
    """
    done = [Surveyed(entry, number, stat_of(entry.path)) for number, entry in enumerate(inputs)]
    path = scratch / "index.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as index:
        index.executescript(_SCHEMA)
        with ThreadPoolExecutor(1) as digester:
            for number in shared.order(len(done)) if shared else range(len(done)):
                _once(done[number], (format, part_bytes, line_limit), scratch, digester, shared)
            first = 0
            for found in done:
                found.units = range(first, first)
                if found.format is not None and not found.by_line:
                    with _digesting(found, digester):
                        index.execute("BEGIN")
                        _index_units(found, index, line_limit, scratch)
                        index.execute("COMMIT")
                first = found.units.stop
        stop = _limit_mark(done, limit, line_limit)
        borders = _borders(_chunks(done, index), part_bytes, stop)
    return Survey(done, path, line_limit, [*borders, stop])


def _once(
    found: Surveyed, options: tuple[str, int, int], scratch: Path, digester: ThreadPoolExecutor,
    shared: SharedSurvey | None,
) -> None:  # fmt: skip
    """The format and, where a line is a unit, the digest and the chunks, unless another shard has found them out."""
    what = found.input.path.resolve(), found.input.given, *found.stat, *options
    known = shared.get(*what) if shared else None
    if known is not None:
        found.recall(known)
        return
    format, part_bytes, line_limit = options  # noqa: A001
    _find_format(found, format, line_limit)
    if found.format is None or found.by_line:
        with _digesting(found, digester):
            if found.by_line:
                _cut_lines(found, part_bytes, line_limit, scratch)
        if shared and found.plain is None:
            shared.keep(found.known(), *what)


@contextlib.contextmanager
def _digesting(found: Surveyed, digester: ThreadPoolExecutor) -> Iterator[None]:
    """Digest an input while the block reads it: hashing lets other threads run beside it."""
    digest = digester.submit(_digest, found.input.path)
    yield
    found.digest = digest.result()
    check_unchanged(found)


def _digest(path: Path) -> str:
    """As `xxhsum -H2` prints it: it tells one log from another; SHA-256 would take longer than reading the JSON."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, xxhash.xxh3_128).hexdigest()


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


# -- parts ---------------------------------------------------------------------------------------------------------


def _chunks(inputs: Iterable[Surveyed], index: sqlite3.Connection) -> Iterator[tuple[Mark, int]]:
    """What parts are made of, in order: where each piece begins, and its bytes."""
    for found in inputs:
        yield from found.chunks
        query = "SELECT unit, SUM(bytes) FROM line WHERE unit >= ? AND unit < ? GROUP BY unit ORDER BY unit"
        for unit, size in index.execute(query, (found.units.start, found.units.stop)):
            yield Mark(found.number, unit), size
        if found.format is not None and found.problem is not None:
            yield Mark(found.number, END), 0


def _borders(chunks: Iterable[tuple[Mark, int]], part_bytes: int, stop: Mark) -> list[Mark]:
    """Where each part begins: as many chunks as fit, and at least one."""
    borders: list[Mark] = []
    held = 0
    for mark, size in chunks:
        if mark >= stop:
            break
        if not borders or held + size > part_bytes:
            borders.append(mark)
            held = 0
        held += size
    return borders


def _limit_mark(inputs: Sequence[Surveyed], limit: int | None, line_limit: int) -> Mark:
    """Behind the first `limit` units of all inputs together."""
    if limit is None:
        return Mark(len(inputs), 0)
    left = limit
    for found in inputs:
        if found.chunks:
            with open_plain(found.path) as handle:
                for offset, line in lines(handle, found.input.source, line_limit, stop=found.size):
                    if left == 0:
                        return Mark(found.number, offset, line.number)
                    left -= 1
        if left < len(found.units):
            return Mark(found.number, found.units[left])
        left -= len(found.units)
        if found.format is not None and found.problem is not None:
            if left == 0:
                return Mark(found.number, END)
            left -= 1
    return Mark(len(inputs), 0)


# -- one input -----------------------------------------------------------------------------------------------------


def _find_format(found: Surveyed, format: str, line_limit: int) -> None:  # noqa: A002
    if found.stat[0] == 0:
        return
    source = found.input.source
    try:
        found.format = format if format != AUTO else _detected(found.input, line_limit)
    except Unreadable as why:
        if found.input.given and why.reason != VOTES:
            remedy = "; --format names the format" if why.reason == UNKNOWN else ""
            raise ConfigError(f"{source}: {why.reason} ({why.detail}){remedy}") from None
        found.problem = why


def _cut_lines(found: Surveyed, part_bytes: int, line_limit: int, scratch: Path) -> None:
    with _noting_damage(found), open_plain(found.path) as handle:
        _scan_lines(found, handle, part_bytes)
    if found.problem is not None:  # read on from somewhere else, it might break off somewhere else
        _unpack(found, scratch)
    with open_plain(found.path) as handle:
        if not any(True for _ in lines(handle, found.input.source, line_limit, stop=found.size)):
            found.chunks.clear()


def _index_units(found: Surveyed, index: sqlite3.Connection, line_limit: int, scratch: Path) -> None:
    if compression(found.input.path):
        _unpack(found, scratch)
    with _noting_damage(found), open_plain(found.path) as handle:
        numbered = lines(handle, found.input.source, line_limit)
        if READERS[found.format or ""].grouping == "session":
            _scan_sessions(found, numbered, index)
        else:
            _scan_ids(found, numbered, index)


def _unpack(found: Surveyed, scratch: Path) -> None:
    found.plain = scratch / f"plain-{found.number}.jsonl"
    with _noting_damage(found), open_plain(found.input.path) as packed, found.plain.open("wb") as plain:
        while block := packed.read1(_BLOCK):
            plain.write(block)


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


def _scan_lines(found: Surveyed, handle: BufferedReader, part_bytes: int) -> None:
    """Where the first line begins, and then the first one at least `part_bytes` behind the one before."""
    cuts = [Mark(found.number, 0)]
    read = before = 0  # bytes and line ends before the block
    try:
        while block := handle.read1(_BLOCK):  # `read` would lose what it holds when the archive breaks off
            while (end := block.find(b"\n", max(0, cuts[-1].at + part_bytes - read - 1))) >= 0:
                cuts.append(Mark(found.number, read + end + 1, before + _line_ends(block[: end + 1]) + 1))
            before += _line_ends(block)
            if (last := block.rfind(b"\n")) >= 0:
                found.size = read + last + 1
            read += len(block)
        found.size = read  # the last line of a whole file needs no line end
    finally:
        ends = [*(mark.at for mark in cuts[1:]), found.size]
        found.chunks = [(mark, end - mark.at) for mark, end in zip(cuts, ends, strict=True) if end > mark.at]


def _line_ends(block: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == _NEWLINE))


def _scan_sessions(found: Surveyed, numbered: Iterator[tuple[int, Line]], index: sqlite3.Connection) -> None:
    unit = found.units.start
    end = found.path.stat().st_size
    for (offset, number, name), (stop, _, _) in itertools.pairwise(itertools.chain(_headers(numbered), [(end, 0, "")])):
        _, seen = index.execute(_COUNT_ID, (found.number, name, unit)).fetchone()
        index.execute("INSERT INTO unit VALUES (?, ?)", (unit, name if seen == 1 else f"{name}#{seen}"))
        index.execute("INSERT INTO line VALUES (?, ?, ?, ?, ?)", (unit, found.number, offset, number, stop - offset))
        unit += 1
    found.units = range(found.units.start, unit)


def _headers(numbered: Iterator[tuple[int, Line]]) -> Iterator[tuple[int, int, str]]:
    """(offset, line, name) of every session. What lies before the first header is one too."""
    begun = False
    for offset, line in numbered:
        name = _header(line)
        if name is not None or not begun:
            yield offset, line.number, name or f"line{line.number}"
        begun = True


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
    fresh = found.units.start
    for offset, line in numbered:
        name = _logged_name(line)
        unit, seen = fresh, 1
        if name is not None:
            unit, seen = index.execute(_COUNT_ID, (_EVERYWHERE, name, fresh)).fetchone()
        if seen == 1:
            index.execute("INSERT INTO unit VALUES (?, ?)", (unit, name))
            fresh += 1
        place = (unit, found.number, offset, line.number, len(line.data))
        index.execute("INSERT INTO line VALUES (?, ?, ?, ?, ?)", place)
    found.units = range(found.units.start, fresh)


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
