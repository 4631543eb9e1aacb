"""The first pass over the inputs: digests, formats, and where every part begins, so that each can be read alone.

A part is about `part_bytes` of unpacked log, in whole units; a unit is what `--limit` counts: a non-blank line of the
formats that hold one conversation a line, a session of pi, a logged session id of the others. Formats with one
conversation a line need no parsing to find a part, only the line ends beside its borders. Sessions and ids, whose lines
may lie anywhere, are found again by an index in a temporary SQLite file. So memory does not grow with the inputs.
"""

import contextlib
import hashlib
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import xxhash

from opdkit.chat.conversation import Unreadable
from opdkit.errors import ConfigError
from opdkit.extract.formats.detect import detect, remedy
from opdkit.extract.formats.openclaw_rl import VOTES
from opdkit.extract.formats.reader import Line, Reader
from opdkit.extract.inputs.inputs import Input, compression, is_damage, lines, open_plain
from opdkit.extract.inputs.parquet import Rows, is_parquet, row_chunks
from opdkit.extract.inputs.scan import BLOCK, scan_ids, scan_lines, scan_sessions
from opdkit.extract.inputs.shared_survey import SharedSurvey
from opdkit.extract.inputs.spool import spooled
from opdkit.extract.inputs.surveyed import END, Mark, Surveyed, check_unchanged, stat_of

AUTO = "auto"
DAMAGED = "damaged archive"
_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE id (scope INTEGER, key TEXT, unit INTEGER, seen INTEGER, PRIMARY KEY (scope, key)) WITHOUT ROWID;
CREATE TABLE unit (number INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE line (unit INTEGER, input INTEGER, offset INTEGER, number INTEGER, bytes INTEGER,
    PRIMARY KEY (unit, input, offset)) WITHOUT ROWID;
"""


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
    format: str | Reader,  # noqa: A002
    part_bytes: int,
    line_limit: int,
    limit: int | None,
    scratch: Path,
    shared: SharedSurvey | None = None,
) -> Survey:
    """Read every input once. Raises ConfigError for one that was named and that no reader, or more than one, knows.

    `format` is a reader's name, "auto", or a reader that is none of READERS.
    With `shared`, inputs with one conversation a line that another shard has read are not read again.
    """
    done = [Surveyed(entry, number, stat_of(entry.path), parquet=is_parquet(entry.path))
            for number, entry in enumerate(inputs)]  # fmt: skip
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
    found: Surveyed, options: tuple[str | Reader, int, int], scratch: Path, digester: ThreadPoolExecutor,
    shared: SharedSurvey | None,
) -> None:  # fmt: skip
    """The format and, where a line is a unit, the digest and the chunks, unless another shard has found them out."""
    format, part_bytes, line_limit = options  # noqa: A001
    found.own = format if isinstance(format, Reader) else None
    name = f"{format.name} by {format.grouping}" if isinstance(format, Reader) else format
    what = found.input.path.resolve(), found.input.given, *found.stat, name, part_bytes, line_limit
    known = shared.get(*what) if shared else None
    if known is not None:
        found.recall(known)
        return
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
            with numbered(found, line_limit, found.size) as units:
                for offset, line in units:
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


@contextlib.contextmanager
def numbered(found: Surveyed, line_limit: int, stop: float = math.inf) -> Iterator[Iterator[tuple[int, Line]]]:
    """(place, line) of every line or row of an input, from its beginning."""
    with contextlib.ExitStack() as stack:
        if found.by_row:
            yield stack.enter_context(contextlib.closing(Rows(found.path, found.input.source, line_limit))).read(stop)
        else:
            handle = stack.enter_context(open_plain(found.path))
            yield lines(handle, found.input.source, line_limit, stop=stop)


def _find_format(found: Surveyed, format: str | Reader, line_limit: int) -> None:  # noqa: A002
    if found.stat[0] == 0:
        return
    source = found.input.source
    try:
        if isinstance(format, Reader):
            found.format = format.name
        else:
            found.format = format if format != AUTO else _detected(found, line_limit)
    except Unreadable as why:
        if found.input.given and why.reason != VOTES:
            raise ConfigError(f"{source}: {why.reason} ({why.detail}){remedy(why)}") from None
        found.problem = why


def _cut_lines(found: Surveyed, part_bytes: int, line_limit: int, scratch: Path) -> None:
    if found.parquet:
        with _noting_damage(found):
            found.size, chunks = row_chunks(found.path, part_bytes)
            found.chunks = [(Mark(found.number, row, row + 1), size) for row, size in chunks]
        return
    with _noting_damage(found), open_plain(found.path) as handle:
        scan_lines(found, handle, part_bytes)
    if found.problem is not None:  # read on from somewhere else, it might break off somewhere else
        _unpack(found, scratch)
    with open_plain(found.path) as handle:
        if not any(True for _ in lines(handle, found.input.source, line_limit, stop=found.size)):
            found.chunks.clear()


def _index_units(found: Surveyed, index: sqlite3.Connection, line_limit: int, scratch: Path) -> None:
    """Index where the lines of every unit lie: in the input, or in what was written down of it."""
    spool = found.parquet or found.reader.unfold is not None
    if compression(found.input.path) and not spool:
        _unpack(found, scratch)
    scan = scan_sessions if found.reader.grouping == "session" else scan_ids
    with _noting_damage(found), numbered(found, line_limit) as read:
        if spool:
            found.plain, found.spooled = scratch / f"plain-{found.number}.jsonl", True
            read = spooled(read, found.plain, found.reader.unfold)
        scan(found, read, index)


def _unpack(found: Surveyed, scratch: Path) -> None:
    found.plain = scratch / f"plain-{found.number}.jsonl"
    with _noting_damage(found), open_plain(found.input.path) as packed, found.plain.open("wb") as plain:
        while block := packed.read1(BLOCK):
            plain.write(block)


def _detected(found: Surveyed, limit: int) -> str:
    try:
        with numbered(found, limit) as read:
            return detect(found.input.source, (line for _, line in read))
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
