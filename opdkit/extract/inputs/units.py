"""The second pass: the units of one part, read from where the first pass has found them, and from nowhere else."""

import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from typing import NamedTuple, overload

from opdkit.chat.conversation import Unreadable
from opdkit.extract.formats.reader import Line
from opdkit.extract.inputs.inputs import compression, lines, open_plain
from opdkit.extract.inputs.parquet import Rows
from opdkit.extract.inputs.spool import unspooled
from opdkit.extract.inputs.survey import Survey
from opdkit.extract.inputs.surveyed import END, Mark, Surveyed, check_unchanged

_SKIPPED = 1 << 20  # bytes at once


class Unit(NamedTuple):
    """One unit of the log."""

    found: Surveyed
    name: str | None  # the last part of its session ids; None: the line number
    lines: Sequence[Line]
    problem: Unreadable | None = None  # why there are no lines


@dataclass
class _Open:
    """An input that is open."""

    found: Surveyed
    handle: BufferedReader
    packed: bool
    at: int = 0  # bytes into what it holds unpacked; -1: somewhere


class Units:
    """Reads the units of parts. Raises OpdkitError when an input has changed since the first pass."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._index = sqlite3.connect(survey.index)
        self._open: _Open | None = None  # parts mostly follow each other, so the last input stays open
        self._rows: tuple[Surveyed, Rows] | None = None  # and the last one of Parquet

    def close(self) -> None:
        self._index.close()
        if self._open is not None:
            self._open.handle.close()
        if self._rows is not None:
            self._rows[1].close()

    def read(self, part: int) -> Iterator[Unit]:
        """The units of part `part`, in order."""
        if part >= self._survey.parts:  # nothing but inputs that were set aside
            return
        begin, end = self._survey.borders[part : part + 2]
        for found in self._survey.inputs[begin.input : end.input + 1]:
            start = begin if found.number == begin.input else Mark(found.number, 0)
            stop = end.at if found.number == end.input else END + 1
            if found.format is None or start.at >= stop:
                continue
            if found.by_line and found.by_row:
                yield from self._by_row(found, start.at, min(stop, found.size))
            elif found.by_line:
                yield from self._by_line(found, start, min(stop, found.size))
            else:
                yield from self._indexed(found, max(start.at, found.units.start), min(stop, found.units.stop))
            if found.problem is not None and start.at <= END < stop:
                yield Unit(found, None, (), found.problem)
            check_unchanged(found)

    # -- a unit a line -------------------------------------------------------------------------------------------------

    def _by_line(self, found: Surveyed, start: Mark, stop: int) -> Iterator[Unit]:
        opened = self._opened(found, start.at)
        for _, line in self._lines(opened, start.at, start.line, stop):
            yield Unit(found, None, (line,))
        opened.at = stop

    def _by_row(self, found: Surveyed, start: int, stop: int) -> Iterator[Unit]:
        if self._rows is None or self._rows[0] is not found or self._rows[1].at != start:
            if self._rows is not None:
                self._rows[1].close()
            self._rows = found, Rows(found.path, found.input.source, self._survey.line_limit, start)
        for _, line in self._rows[1].read(stop):
            yield Unit(found, None, (line,))

    def _opened(self, found: Surveyed, offset: int) -> _Open:
        """The input, open at a byte offset into what it holds unpacked."""
        opened = self._open
        if opened is None or opened.found is not found or (opened.packed and not 0 <= opened.at <= offset):
            if opened is not None:
                opened.handle.close()
            opened = self._open = _Open(
                found, open_plain(found.path), found.plain is None and compression(found.path) is not None
            )
        if not opened.packed:
            opened.handle.seek(offset)
        while opened.packed and opened.at < offset:  # a packed stream only goes forward
            skipped = len(opened.handle.read(min(_SKIPPED, offset - opened.at)))
            if not skipped:  # somebody has cut it short since; whoever reads on will be told
                break
            opened.at += skipped
        return opened

    def _lines(self, opened: _Open, offset: int, number: int, stop: int) -> Iterator[tuple[int, Line]]:
        opened.at = -1  # until all lines are read
        source, limit = opened.found.input.source, self._survey.line_limit
        read = lines(opened.handle, source, limit, number=number, offset=offset, stop=stop)
        return ((at, unspooled(line)) for at, line in read) if opened.found.spooled else read

    # -- a unit an index entry -----------------------------------------------------------------------------------------

    def _indexed(self, found: Surveyed, first: int, stop: int) -> Iterator[Unit]:
        grouping = found.reader.grouping
        for number in range(first, stop):
            (name,) = self._index.execute("SELECT name FROM unit WHERE number = ?", (number,)).fetchone()
            if grouping == "session":
                yield Unit(found, name, self._session(found, number))
            else:
                stored = _StoredLines(self, number)
                yield Unit(found, name, stored)
                for other in stored.inputs():
                    check_unchanged(other)

    def _session(self, found: Surveyed, unit: int) -> list[Line]:
        """The lines from a session's header to the next one's."""
        query = "SELECT offset, number, bytes FROM line WHERE unit = ?"
        offset, number, size = self._index.execute(query, (unit,)).fetchone()
        numbered = self._lines(self._opened(found, offset), offset, number, offset + size)
        return [line for _, line in numbered]

    def line(self, number: int, offset: int, line: int) -> Line:
        """One line of input `number` by where it lies."""
        opened = self._opened(self.surveyed(number), offset)
        return next(self._lines(opened, offset, line, offset + 1))[1]

    def places(self, unit: int) -> Iterator[tuple[int, int, int]]:
        """(input, offset, line) of every line of a unit, in the order of the inputs."""
        query = "SELECT input, offset, number FROM line WHERE unit = ? ORDER BY input, offset"
        yield from self._index.execute(query, (unit,))

    def surveyed(self, number: int) -> Surveyed:
        return self._survey.inputs[number]


class _StoredLines(Sequence[Line]):
    """The lines of a unit, wherever they lie. Each is read when it is asked for: a shared id may own a whole log."""

    def __init__(self, units: Units, unit: int) -> None:
        self._units = units
        self._places = array("q", (value for place in units.places(unit) for value in place))

    def __len__(self) -> int:
        return len(self._places) // 3

    @overload
    def __getitem__(self, index: int) -> Line: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Line]: ...
    def __getitem__(self, index: int | slice) -> Line | Sequence[Line]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._units.line(*self._places[3 * index : 3 * index + 3])

    def inputs(self) -> list[Surveyed]:
        return [self._units.surveyed(number) for number in sorted(set(self._places[::3]))]
