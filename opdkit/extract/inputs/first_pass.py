"""First pass over the inputs: digests, formats, and where every part begins, so that each part can be read alone.

A part is about `part_bytes` of unpacked log, in whole units. A unit is what `--limit` counts: a non-blank line of the
formats that hold one conversation per line, a session of pi, a logged session id of the others. Formats with one
conversation per line need no parsing to find a part, only the line ends beside its borders.
"""

import contextlib
import json
import sqlite3
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import xxhash

from opdkit.chat.conversation import Unreadable
from opdkit.errors import ConfigError, OpdkitError
from opdkit.extract.formats import READERS
from opdkit.extract.formats.detect import NO_LINES, detect, problem_text
from opdkit.extract.formats.openclaw_rl import VOTES
from opdkit.extract.formats.reader import Line, Reader
from opdkit.extract.inputs.archives import DAMAGED
from opdkit.extract.inputs.files import Input, holds_documents, is_damage, lines, open_plain, packing
from opdkit.extract.inputs.index import BLOCK, SCHEMA, copy_lines, cut_lines, index_ids, index_sessions, read_copy
from opdkit.store.atomic import write_text
from opdkit.store.digests import file_digest
from opdkit.version import __version__

AUTO = "auto"
END = 1 << 62  # `Mark.at` behind all units of an input


class Mark(NamedTuple):
    """Place between two units. Marks are in the order of the log."""

    input: int
    at: int  # bytes into the unpacked input, rows of Parquet; where units are sessions or ids, the number of the unit
    line: int = 1  # formats with one conversation per line: the line there, from 1


@dataclass
class SurveyedInput:
    """Input after the first pass."""

    input: Input
    number: int
    stat: tuple[int, ...]  # size, time of change, inode
    path: Path  # to read its lines from: the file itself, or a copy, unpacked or of its lines (`copied`)
    mapped: Reader | None = None  # the reader that `--map` made
    format: str | None = None  # None: empty, or set aside, and then without units
    digest: str = ""
    problem: Unreadable | None = None  # why it was set aside; with a format: why it breaks off
    by_row: bool = False  # read as Parquet: places in it are rows
    documents: bool = False  # JSON that does not come as lines: read as if each object were one
    copied: bool = False  # `path` was written by index.copy_lines
    size: int = 0  # bytes of the unpacked input that hold whole lines; rows of Parquet
    chunks: list[tuple[Mark, int]] = field(default_factory=list)  # one conversation per line: where to cut, bytes
    units: range = range(0)  # sessions and ids: the units that come up first in this input

    @property
    def reader(self) -> Reader:
        """Reader of its format."""
        return self.mapped or READERS[self.format or ""]

    @property
    def is_by_line(self) -> bool:
        """True where each line is a unit."""
        return self.format is not None and self.reader.grouping == "line"

    def check_unchanged(self) -> None:
        """Raise OpdkitError when the file is no longer the one that the first pass began to read."""
        now = file_state(self.input.path)
        if now != self.stat:
            raise OpdkitError(
                f"{self.input.source} changed while it was read ({self.stat[0]:,} bytes before, {now[0]:,} now). "
                "Copy the log to where nothing writes to it, and extract the copy."
            )


@dataclass
class Survey:
    """All inputs after the first pass. Part k is the units from `borders[k]` up to `borders[k + 1]`."""

    inputs: list[SurveyedInput]
    index: Path
    line_limit: int  # bytes
    borders: list[Mark]

    @property
    def parts(self) -> int:
        """Number of parts."""
        return max(0, len(self.borders) - 1)


@dataclass
class SharedSurvey:
    """Results of the first pass, kept in the run, so that not every shard reads all inputs.

        RUN/extract/.survey/9f86d081884c7d659a2feaa0c55ad015.json

    One file per input, named by a digest of all that it depends on: the file's path, size, time and inode, and the
    options. Shards begin at different inputs, and look here before each. No lock is needed: two that read the same
    input at once write the same thing.
    """

    folder: Path
    shard: int
    shards: int

    def path(self, log: SurveyedInput, *options: object) -> Path:
        """Return the file for an input, which is read under these options."""
        key = __version__, *options, log.input.path.resolve(), log.input.given, *log.stat
        return self.folder / f"{xxhash.xxh3_128_hexdigest(json.dumps([*map(str, key)]).encode())}.json"

    def recall(self, log: SurveyedInput, path: Path) -> bool:
        """Take over the results in `path`. Return False if there are none yet, or they are damaged."""
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            log.format, log.digest, log.size, log.documents, problem, chunks = known
        except (OSError, ValueError):
            return False
        log.problem = Unreadable(*problem) if problem else None
        log.chunks = [(Mark(log.number, at, line), size) for (_, at, line), size in chunks]
        return True

    def keep(self, log: SurveyedInput, path: Path) -> None:
        """Write the results for the other shards. A disk that cannot take them is no reason to stop."""
        known = log.format, log.digest, log.size, log.documents, log.problem and log.problem.args, log.chunks
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(known))


def survey(
    inputs: Sequence[Input],
    format: str | Reader,  # noqa: A002
    part_bytes: int,
    line_limit: int,
    limit: int | None,
    scratch: Path,
    shared: SharedSurvey | None = None,
    formats: Mapping[str, str] = MappingProxyType({}),
) -> Survey:
    """Read every input once. Raises ConfigError for one that was named and that no reader, or more than one, knows.

    `format` is a reader's name, "auto", or the reader that `--map` made. With `shared`, inputs with one conversation
    per line that another shard has read are not read again. `formats` are those of files with JSON lines
    whose format is known, by file name: they are detected for all others.
    """
    mapped = format if isinstance(format, Reader) else None
    options = f"{mapped.name} by {mapped.grouping}" if mapped else format, part_bytes, line_limit
    logs = [
        SurveyedInput(entry, n, file_state(entry.path), entry.path, mapped, problem=entry.problem, copied=entry.copied)
        for n, entry in enumerate(inputs)
    ]
    for log in logs:
        log.by_row = packing(log.path) == "parquet"
    path = scratch / "index.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as index, ThreadPoolExecutor(1) as digester:
        index.executescript(SCHEMA)
        start = shared.shard * len(logs) // shared.shards if shared else 0  # this shard's share of them comes first
        for log in [*logs[start:], *logs[:start]]:
            if shared and shared.recall(log, shared.path(log, *options)):
                continue
            if format == AUTO and log.path.name in formats:
                log.format = formats[log.path.name]
            else:
                _find_format(log, format, line_limit)
            if log.format is None or log.is_by_line:
                with _digested(log, digester):
                    if log.is_by_line:
                        _cut_into_chunks(log, part_bytes, line_limit, scratch)
                if shared and log.path is log.input.path:
                    shared.keep(log, shared.path(log, *options))
        broken = [log for log in logs if log.input.given and log.problem and log.problem.reason == DAMAGED]
        if broken and all(log.format is None for log in logs):
            raise ConfigError("\n".join(f"{log.input.source}: {DAMAGED}, and nothing else to read" for log in broken))
        first = 0  # units are numbered across the inputs
        for log in logs:
            log.units = range(first, first)
            if log.format is not None and not log.is_by_line:
                with _digested(log, digester):
                    index.execute("BEGIN")
                    _index_units(log, index, line_limit, scratch)
                    index.execute("COMMIT")
            first = log.units.stop
        stop = _mark_behind(logs, limit, line_limit)
        borders = _part_borders(logs, index, part_bytes, stop)
    return Survey(logs, path, line_limit, [*borders, stop])


def file_state(path: Path) -> tuple[int, ...]:
    """Return what changes when a file does: size, time of change, inode."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


@contextlib.contextmanager
def _digested(log: SurveyedInput, digester: ThreadPoolExecutor) -> Iterator[None]:
    """Digest an input while the block reads it: hashing lets other threads run beside it."""
    digest = digester.submit(file_digest, log.input.path)  # `xxhsum -H2`
    yield
    log.digest = digest.result()
    log.check_unchanged()


def _part_borders(logs: Iterable[SurveyedInput], index: sqlite3.Connection, part_bytes: int, stop: Mark) -> list[Mark]:
    """Return where each part begins: as many chunks or units as fit into `part_bytes`, and at least one."""
    borders: list[Mark] = []
    held = 0
    query = "SELECT unit, SUM(bytes) FROM line WHERE unit >= ? AND unit < ? GROUP BY unit ORDER BY unit"
    for log in logs:
        units = index.execute(query, (log.units.start, log.units.stop))
        damage = [(Mark(log.number, END), 0)] if log.format is not None and log.problem is not None else []
        for mark, size in chain(log.chunks, ((Mark(log.number, unit), size) for unit, size in units), damage):
            if mark >= stop:
                return borders
            if not borders or held + size > part_bytes:
                borders.append(mark)
                held = 0
            held += size
    return borders


def _mark_behind(logs: Sequence[SurveyedInput], limit: int | None, line_limit: int) -> Mark:
    """Return the place behind the first `limit` units of all inputs together."""
    if limit is None:
        return Mark(len(logs), 0)
    left = limit
    for log in logs:
        for offset, line in read_lines(log, line_limit, log.size) if log.chunks else ():
            if left == 0:
                return Mark(log.number, offset, line.number)
            left -= 1
        if left < len(log.units):
            return Mark(log.number, log.units[left])
        left -= len(log.units)
        if log.format is not None and log.problem is not None:
            if left == 0:
                return Mark(log.number, END)
            left -= 1
    return Mark(len(logs), 0)


def read_lines(log: SurveyedInput, line_limit: int, stop: int = sys.maxsize) -> Iterator[tuple[int, Line]]:
    """Yield (place, line) of every line or row of an input, from its beginning to the place `stop`."""
    if log.by_row:
        from opdkit.extract.inputs.parquet import read_rows  # pyarrow is slow to import

        yield from enumerate(islice(read_rows(log.path, log.input.source, line_limit), stop))
    else:
        with open_plain(log.path, log.documents) as handle:
            for at, line in lines(handle, log.input.source, line_limit, stop=stop):
                yield at, read_copy(line) if log.copied else line


def _find_format(log: SurveyedInput, format: str | Reader, line_limit: int) -> None:  # noqa: A002
    """Set the format of an input; the problem where none is found. An empty input has neither."""
    if log.problem is not None:
        return
    if log.by_row:
        from opdkit.extract.inputs.parquet import row_chunks

        with _noting_damage(log):
            if row_chunks(log.path, END)[0] == 0:
                return
    else:
        log.documents = holds_documents(log.path, line_limit)
        with _noting_damage(log), open_plain(log.path, log.documents) as handle:
            if not handle.peek(1):
                return
    if format != AUTO:
        log.format = format.name if isinstance(format, Reader) else format
        return
    try:
        numbered = (line for _, line in _lines_until_damage(log, line_limit))
        log.format = detect(numbered, "record" if log.documents else "line")
    except Unreadable as error:
        if log.problem is not None and error.reason == NO_LINES:
            return  # it breaks off before its first record
        if log.input.given and error.reason != VOTES:
            raise ConfigError(problem_text(log.input.source, error)) from None
        log.problem = error


def _cut_into_chunks(log: SurveyedInput, part_bytes: int, line_limit: int, scratch: Path) -> None:
    """Find where an input whose lines are units can be cut. None of its chunks holds blank lines only."""
    if log.by_row:
        from opdkit.extract.inputs.parquet import row_chunks

        with _noting_damage(log):
            log.size, chunks = row_chunks(log.path, part_bytes)
            log.chunks = [(Mark(log.number, row, row + 1), size) for row, size in chunks]
        return
    with open_plain(log.path, log.documents) as handle:
        cuts, log.size, whole = cut_lines(handle, part_bytes)
    stops = [*(at for at, _ in cuts[1:]), log.size]
    log.chunks = [
        (Mark(log.number, at, line), stop - at) for (at, line), stop in zip(cuts, stops, strict=True) if stop > at
    ]
    if not whole:  # read again from another place, it might break off at another place
        _unpack(log, scratch / f"plain-{log.number}.jsonl")
    if next(read_lines(log, line_limit, log.size), None) is None:
        log.chunks.clear()


def _index_units(log: SurveyedInput, index: sqlite3.Connection, line_limit: int, scratch: Path) -> None:
    """Index where the lines of every unit lie: in the input, or in a copy of its lines."""
    copied = log.by_row or log.reader.unfold is not None
    if (packing(log.input.path) or log.documents) and not copied:
        _unpack(log, scratch / f"plain-{log.number}.jsonl")
    numbered, path = _lines_until_damage(log, line_limit), log.path
    if copied:
        path = scratch / f"plain-{log.number}.jsonl"
        numbered = copy_lines(numbered, path, log.reader.unfold)
    if log.reader.grouping == "session":
        log.units = index_sessions(index, log.number, log.reader, path, log.units.start, numbered)
    else:
        log.units = index_ids(index, log.number, log.reader, log.units.start, numbered)
    if copied:
        log.path, log.copied, log.by_row, log.documents = path, True, False, False


def _lines_until_damage(log: SurveyedInput, line_limit: int) -> Iterator[tuple[int, Line]]:
    """Yield (place, line) of every line up to where the input breaks off, if it does."""
    with _noting_damage(log):
        yield from read_lines(log, line_limit)


def copy_plain(entry: Input, documents: bool, line_limit: int, path: Path) -> Unreadable | None:
    """Copy an input that is packed, Parquet or JSON in several lines to `path`, as plain JSON lines.

    Return the problem where it breaks off.
    """
    log = SurveyedInput(entry, 0, file_state(entry.path), entry.path, documents=documents)
    log.by_row = packing(entry.path) == "parquet"
    if log.by_row:
        deque(copy_lines(_lines_until_damage(log, line_limit), path, None), maxlen=0)
    else:
        _unpack(log, path)
    return log.problem


def _unpack(log: SurveyedInput, path: Path) -> None:
    """Copy an input to `path` as plain JSON lines, up to where it breaks off, if it does."""
    with _noting_damage(log), open_plain(log.path, log.documents) as packed, path.open("wb") as plain:
        while block := packed.read1(BLOCK):
            plain.write(block)
    log.path, log.documents = path, False


@contextlib.contextmanager
def _noting_damage(log: SurveyedInput) -> Iterator[None]:
    """Keep what was read before a compressed stream breaks off. The damage counts as one more unit."""
    try:
        yield
    except Exception as error:
        if not is_damage(error):
            raise
        log.problem = Unreadable(DAMAGED, f"{error}; the lines before that, if any, are read")
