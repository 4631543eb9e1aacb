"""First pass over the inputs: digests, formats, and where every part begins, so that each part can be read alone.

A part is about `part_bytes` of unpacked log, in whole units. A unit is what `--limit` counts. The format decides what
it is (`Reader.grouping`): a non-blank line with a conversation, a session with a header (codex, pi), or all lines with
one logged id. If units are lines, parts are found without parsing: only the line ends at their borders are needed.
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
from opdkit.extract.formats.detect import NO_LINES, detect, explain_problem
from opdkit.extract.formats.openclaw_rl import VOTES
from opdkit.extract.formats.reader import Line, Reader
from opdkit.extract.inputs.archives import DAMAGED
from opdkit.extract.inputs.files import Input, find_documents, lines, open_plain, packing, until_damage
from opdkit.extract.inputs.index import BLOCK, SCHEMA, copy_lines, cut_lines, index_ids, index_sessions, read_copy
from opdkit.store.atomic import write_text
from opdkit.store.digests import digest_file
from opdkit.version import __version__

AUTO = "auto"
END = 1 << 62  # Mark.at of the damage of an input that breaks off: one more unit, after all others


class Mark(NamedTuple):
    """Position between two units. Marks compare in the order of the log."""

    input: int
    at: int  # offset in the unpacked input, or Parquet row; if units are sessions or ids, the number of the unit
    line: int = 1  # formats with one conversation per line: the number of the line there, from 1


@dataclass
class SurveyedInput:
    """Input after the first pass."""

    input: Input
    number: int
    stat: tuple[int, ...]  # size, time of change, inode
    path: Path  # where its lines are read from: the file, an unpacked copy, or a copy of its lines (`copied`)
    mapped: Reader | None = None  # the reader that `--map` made
    format: str | None = None  # None: it is empty or set aside, and has no units
    digest: str = ""
    problem: Unreadable | None = None  # why it was set aside; with a format: why it breaks off
    is_parquet: bool = False  # read as Parquet: places in it are rows
    documents: str = ""  # if its JSON is not in lines: what is read as a line, see files.find_documents
    copied: bool = False  # `path` was written by index.copy_lines
    size: int = 0  # bytes of the unpacked input that hold whole lines; rows of Parquet
    chunks: list[tuple[Mark, int]] = field(default_factory=list)  # by line: (cut, bytes up to the next cut)
    units: range = range(0)  # sessions and ids: the units that begin in this input

    @property
    def reader(self) -> Reader:
        return self.mapped or READERS[self.format or ""]

    @property
    def has_line_units(self) -> bool:
        return self.format is not None and self.reader.grouping == "line"

    def check_unchanged(self) -> None:
        """Raise OpdkitError if the file has changed since the first pass began to read it."""
        now = read_file_state(self.input.path)
        if now != self.stat:
            raise OpdkitError(
                f"{self.input.source} changed while it was read ({self.stat[0]:,} bytes before, {now[0]:,} now). "
                "Copy the log to where nothing writes to it, and extract the copy."
            )


@dataclass
class Survey:
    """All inputs after the first pass. Part k holds the units from `borders[k]` up to `borders[k + 1]`."""

    inputs: list[SurveyedInput]
    index: Path
    line_limit: int  # bytes
    borders: list[Mark]

    @property
    def parts(self) -> int:
        return len(self.borders) - 1


@dataclass
class SharedSurvey:
    """Results of the first pass, stored in the run, so that not every shard has to read all inputs.

        RUN/extract/.survey/9f86d081884c7d659a2feaa0c55ad015.json

    There is one file per input, named by a digest of all that the results depend on: the input's path, size, time and
    inode, and the options. Each shard begins at another input and looks here before it reads one. No lock is needed:
    two shards that read the same input at once write the same results.
    """

    folder: Path
    shard: int
    shards: int

    def path(self, surveyed: SurveyedInput, *options: object) -> Path:
        """Return the file with the results for an input that is read under these options."""
        key = __version__, *options, surveyed.input.path.resolve(), surveyed.input.given, *surveyed.stat
        return self.folder / f"{xxhash.xxh3_128_hexdigest(json.dumps([*map(str, key)]).encode())}.json"

    def recall(self, surveyed: SurveyedInput, path: Path) -> bool:
        """Copy the results in `path` to `surveyed`. Return False if there are none yet, or they are damaged."""
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            surveyed.format, surveyed.digest, surveyed.size, surveyed.documents, problem, chunks = known
        except (OSError, ValueError):
            return False
        surveyed.problem = Unreadable(*problem) if problem else None
        surveyed.chunks = [(Mark(surveyed.number, at, line), size) for (_, at, line), size in chunks]
        return True

    def keep(self, surveyed: SurveyedInput, path: Path) -> None:
        """Write the results for the other shards. Errors of the disk are ignored: the results can be recomputed."""
        problem = surveyed.problem and surveyed.problem.args
        known = surveyed.format, surveyed.digest, surveyed.size, surveyed.documents, problem, surveyed.chunks
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(known))


def make_survey(
    inputs: Sequence[Input],
    log_format: str | Reader,
    part_bytes: int,
    line_limit: int,
    limit: int | None,
    scratch: Path,
    shared: SharedSurvey | None = None,
    formats: Mapping[str, str] = MappingProxyType({}),
) -> Survey:
    """Read every input once. Raises ConfigError for a named input that no reader, or more than one reader, recognises.

    `log_format` is a reader's name, "auto", or the reader that `--map` made. `formats` maps names of JSON lines files
    to their formats, as far as known; the formats of other files are detected. With `shared`, an input with one
    conversation per line that another shard has read is not read again.
    """
    mapped = log_format if isinstance(log_format, Reader) else None
    options = f"{mapped.name} by {mapped.grouping}" if mapped else log_format, part_bytes, line_limit
    entries = [begin_survey(entry, number, mapped) for number, entry in enumerate(inputs)]
    path = scratch / "index.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as index, ThreadPoolExecutor(1) as digester:
        index.executescript(SCHEMA)
        start = shared.shard * len(entries) // shared.shards if shared else 0  # each shard begins at another input
        for surveyed in [*entries[start:], *entries[:start]]:
            if shared and shared.recall(surveyed, shared.path(surveyed, *options)):
                continue
            if log_format == AUTO and surveyed.path.name in formats:
                surveyed.format = formats[surveyed.path.name]
            else:
                find_format(surveyed, log_format, line_limit)
            if surveyed.format is None or surveyed.has_line_units:
                with _digest_meanwhile(surveyed, digester):
                    if surveyed.has_line_units:
                        _cut_into_chunks(surveyed, part_bytes, line_limit, scratch)
                if shared and surveyed.path is surveyed.input.path:
                    shared.keep(surveyed, shared.path(surveyed, *options))
        broken = [s.input.source for s in entries if s.input.given and s.problem and s.problem.reason == DAMAGED]
        if broken and all(surveyed.format is None for surveyed in entries):
            raise ConfigError("\n".join(f"{source}: {DAMAGED}, and nothing else to read" for source in broken))
        first = 0  # units are numbered across the inputs
        for surveyed in entries:
            surveyed.units = range(first, first)
            if surveyed.format is not None and not surveyed.has_line_units:
                with _digest_meanwhile(surveyed, digester):
                    index.execute("BEGIN")
                    _index_units(surveyed, index, line_limit, scratch)
                    index.execute("COMMIT")
            first = surveyed.units.stop
        stop = _find_stop(entries, limit, line_limit)
        borders = _choose_borders(entries, index, part_bytes, stop)
    return Survey(entries, path, line_limit, [*borders, stop])


def begin_survey(entry: Input, number: int = 0, mapped: Reader | None = None) -> SurveyedInput:
    """Return what is known of an input before it is read."""
    return SurveyedInput(entry, number, read_file_state(entry.path), entry.path, mapped, problem=entry.problem,
                         is_parquet=packing(entry.path) == "parquet", copied=entry.copied)  # fmt: skip


def read_file_state(path: Path) -> tuple[int, ...]:
    """Return the state of a file, which differs after a change: size, time of change (ns), inode."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


@contextlib.contextmanager
def _digest_meanwhile(surveyed: SurveyedInput, digester: ThreadPoolExecutor) -> Iterator[None]:
    """Digest an input in a thread while the block reads it: hashing releases the GIL."""
    digest = digester.submit(digest_file, surveyed.input.path)  # `xxhsum -H2`
    yield
    surveyed.digest = digest.result()
    surveyed.check_unchanged()


def _choose_borders(
    inputs: Iterable[SurveyedInput], index: sqlite3.Connection, part_bytes: int, stop: Mark
) -> list[Mark]:
    """Return where each part begins. A part is as many chunks or units as fit into `part_bytes`, and at least one."""
    borders: list[Mark] = []
    held = 0
    query = "SELECT unit, SUM(bytes) FROM line WHERE unit >= ? AND unit < ? GROUP BY unit ORDER BY unit"
    for surveyed in inputs:
        units = index.execute(query, (surveyed.units.start, surveyed.units.stop))
        damage = [(Mark(surveyed.number, END), 0)] if surveyed.format and surveyed.problem else []
        for mark, size in chain(surveyed.chunks, ((Mark(surveyed.number, unit), size) for unit, size in units), damage):
            if mark >= stop:
                return borders
            if not borders or held + size > part_bytes:
                borders.append(mark)
                held = 0
            held += size
    return borders


def _find_stop(inputs: Sequence[SurveyedInput], limit: int | None, line_limit: int) -> Mark:
    """Return the position after the first `limit` units of all inputs together; without a limit, after all units."""
    if limit is None:
        return Mark(len(inputs), 0)
    left = limit
    for surveyed in inputs:
        for offset, line in read_lines(surveyed, line_limit, surveyed.size) if surveyed.chunks else ():
            if left == 0:
                return Mark(surveyed.number, offset, line.number)
            left -= 1
        if left < len(surveyed.units):
            return Mark(surveyed.number, surveyed.units[left])
        left -= len(surveyed.units)
        if surveyed.format is not None and surveyed.problem is not None:
            if left == 0:
                return Mark(surveyed.number, END)
            left -= 1
    return Mark(len(inputs), 0)


def read_lines(surveyed: SurveyedInput, line_limit: int, stop: int = sys.maxsize) -> Iterator[tuple[int, Line]]:
    """Yield (place, line) for every line or row of an input up to `stop`. A place is an offset or a row's number."""
    if surveyed.is_parquet:
        from opdkit.extract.inputs.parquet import read_rows  # pyarrow is slow to import

        yield from enumerate(islice(read_rows(surveyed.path, surveyed.input.source, line_limit), stop))
    else:
        with open_plain(surveyed.path, surveyed.documents) as handle:
            for at, line in lines(handle, surveyed.input.source, line_limit, stop=stop):
                yield at, read_copy(line) if surveyed.copied else line


def find_format(surveyed: SurveyedInput, log_format: str | Reader, line_limit: int) -> None:
    """Set the format of an input, or the problem if none is found. An input of only blank lines gets neither."""
    if surveyed.problem is not None:
        return
    if not surveyed.is_parquet:
        surveyed.documents = find_documents(surveyed.path, line_limit)
    numbered = (line for _, line in _read_until_damage(surveyed, line_limit))
    if (first := next(numbered, None)) is None:
        return
    if log_format != AUTO:
        surveyed.format = log_format.name if isinstance(log_format, Reader) else log_format
        return
    try:
        surveyed.format = detect(chain([first], numbered), "record" if surveyed.documents else "line")
    except Unreadable as error:
        if surveyed.problem is not None and error.reason == NO_LINES:
            return  # it breaks off before its first record
        if surveyed.input.given and error.reason != VOTES:
            raise ConfigError(explain_problem(surveyed.input.source, error)) from None
        surveyed.problem = error


def _cut_into_chunks(surveyed: SurveyedInput, part_bytes: int, line_limit: int, scratch: Path) -> None:
    """Find where an input whose lines are units can be cut. An input of only blank lines gets no chunks."""
    if surveyed.is_parquet:
        from opdkit.extract.inputs.parquet import plan_row_chunks

        with _note_damage(surveyed):
            surveyed.size, chunks = plan_row_chunks(surveyed.path, part_bytes)
            surveyed.chunks = [(Mark(surveyed.number, row, row + 1), size) for row, size in chunks]
        return
    with open_plain(surveyed.path, surveyed.documents) as handle:
        cuts, surveyed.size, whole = cut_lines(handle, part_bytes)
    stops = [*(at for at, _ in cuts[1:]), surveyed.size]
    surveyed.chunks = [
        (Mark(surveyed.number, at, line), stop - at) for (at, line), stop in zip(cuts, stops, strict=True) if stop > at
    ]
    if not whole:  # read again from another offset, it might break off elsewhere
        _unpack(surveyed, scratch / f"plain-{surveyed.number}.jsonl")
    if next(read_lines(surveyed, line_limit, surveyed.size), None) is None:
        surveyed.chunks.clear()


def _index_units(surveyed: SurveyedInput, index: sqlite3.Connection, line_limit: int, scratch: Path) -> None:
    """Index where the lines of every unit lie: in the input, or in a copy of its lines."""
    copied = surveyed.is_parquet or surveyed.reader.unfold is not None
    if (packing(surveyed.input.path) or surveyed.documents) and not copied:
        _unpack(surveyed, scratch / f"plain-{surveyed.number}.jsonl")
    numbered, path = _read_until_damage(surveyed, line_limit), surveyed.path
    if copied:
        path = scratch / f"plain-{surveyed.number}.jsonl"
        numbered = copy_lines(numbered, path, surveyed.reader.unfold)
    if surveyed.reader.grouping == "session":
        surveyed.units = index_sessions(index, surveyed.number, surveyed.reader, path, surveyed.units.start, numbered)
    else:
        surveyed.units = index_ids(index, surveyed.number, surveyed.reader, surveyed.units.start, numbered)
    if copied:
        surveyed.path, surveyed.copied, surveyed.is_parquet, surveyed.documents = path, True, False, ""


def _read_until_damage(surveyed: SurveyedInput, line_limit: int) -> Iterator[tuple[int, Line]]:
    """Yield (place, line) for every line, up to where the input breaks off, if it does."""
    with _note_damage(surveyed):
        yield from read_lines(surveyed, line_limit)


def copy_plain(entry: Input, documents: str, line_limit: int, path: Path) -> Unreadable | None:
    """Copy an input that is packed, Parquet or JSON in several lines to `path`, as plain JSON lines.

    Return the problem if it breaks off, else None.
    """
    surveyed = begin_survey(entry)
    surveyed.documents = documents
    if surveyed.is_parquet:
        deque(copy_lines(_read_until_damage(surveyed, line_limit), path, None), maxlen=0)
    else:
        _unpack(surveyed, path)
    return surveyed.problem


def _unpack(surveyed: SurveyedInput, path: Path) -> None:
    """Copy an input to `path` as plain JSON lines, up to where it breaks off, if it does."""
    with _note_damage(surveyed), open_plain(surveyed.path, surveyed.documents) as packed, path.open("wb") as plain:
        while block := packed.read1(BLOCK):
            plain.write(block)
    surveyed.path, surveyed.documents = path, ""


@contextlib.contextmanager
def _note_damage(surveyed: SurveyedInput) -> Iterator[None]:
    """End the block if a compressed stream breaks off, and set the problem. The damage counts as one more unit."""
    with until_damage() as damage:
        yield
    if damage:
        surveyed.problem = Unreadable(DAMAGED, f"{damage[0]}; the lines before that, if any, are read")
