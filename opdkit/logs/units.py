"""The second pass: the units of one part, read from where the first pass has found them, and from nowhere else."""

import itertools
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from typing import NamedTuple, overload

from opdkit.logs import READERS
from opdkit.logs.conversation import Line, Unreadable
from opdkit.logs.inputs import compression, lines, open_plain
from opdkit.logs.survey import Mark, Survey, Surveyed, check_unchanged


class Unit(NamedTuple):
    """One unit of the log."""

    found: Surveyed
    name: str | None  # the last part of its session ids; None: the line number
    lines: Sequence[Line]
    problem: Unreadable | None = None  # why there are no lines


@dataclass
class _Cursor:
    """An input of a line format, open before unit `unit`."""

    found: Surveyed
    unit: int
    handle: BufferedReader
    numbered: Iterator[tuple[int, Line]]


class Units:
    """Reads ranges of units. Raises OpdkitError when an input has changed since the first pass."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._cursor: _Cursor | None = None  # parts mostly follow each other, so the last input stays open
        self._handle: tuple[int, BufferedReader] | None = None  # the input that was last read by offset

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.handle.close()
        if self._handle is not None:
            self._handle[1].close()

    def read(self, start: int, stop: int) -> Iterator[Unit]:
        """The units [start, stop), in order."""
        for found in self._survey.inputs:
            first, last = max(start, found.first), min(stop, found.first + found.count)
            if first >= last:
                continue
            readable = min(last, found.readable())
            if first < readable:
                by_line = READERS[found.format or ""].grouping == "line"
                yield from self._by_line(found, first, readable) if by_line else self._indexed(found, first, readable)
            if readable < last:
                yield Unit(found, None, (), found.problem)
            check_unchanged(found)

    # -- a unit a line -------------------------------------------------------------------------------------------------

    def _by_line(self, found: Surveyed, first: int, stop: int) -> Iterator[Unit]:
        cursor = self._cursor_at(found, first)
        cursor.unit = stop
        for _, line in itertools.islice(cursor.numbered, stop - first):
            yield Unit(found, None, (line,))

    def _cursor_at(self, found: Surveyed, unit: int) -> _Cursor:
        cursor = self._cursor
        if cursor is not None and cursor.found is found and cursor.unit == unit:
            return cursor
        packed = compression(found.input.path) is not None
        if cursor is None or cursor.found is not found or cursor.unit > unit or not packed:
            if cursor is not None:
                cursor.handle.close()
            begin, mark = (found.first, Mark(0, 1)) if packed else (unit, found.marks[unit])
            handle = open_plain(found.input.path)
            if not packed:
                handle.seek(mark.offset)
            numbered = lines(handle, found.input.source, self._survey.line_limit, number=mark.line, offset=mark.offset)
            cursor = self._cursor = _Cursor(found, begin, handle, numbered)
        for _ in itertools.islice(cursor.numbered, unit - cursor.unit):  # a packed stream only goes forward
            pass
        return cursor

    # -- a unit an index entry -----------------------------------------------------------------------------------------

    def _indexed(self, found: Surveyed, first: int, stop: int) -> Iterator[Unit]:
        grouping = READERS[found.format or ""].grouping
        for number in range(first, stop):
            (name,) = self._survey.index.execute("SELECT name FROM unit WHERE number = ?", (number,)).fetchone()
            if grouping == "session":
                yield Unit(found, name, self._session(found, number))
            else:
                stored = _StoredLines(self, number)
                yield Unit(found, name, stored)
                for other in stored.inputs():
                    check_unchanged(other)

    def _session(self, found: Surveyed, unit: int) -> list[Line]:
        """The lines from a session's header to the next one's."""
        offset, number = self._survey.index.execute(
            "SELECT offset, number FROM line WHERE unit = ?", (unit,)
        ).fetchone()
        (end,) = self._survey.index.execute(
            "SELECT offset FROM line WHERE unit = ? AND input = ?", (unit + 1, found.number)
        ).fetchone() or (float("inf"),)
        numbered = lines(
            self._plain(found, offset), found.input.source, self._survey.line_limit, number=number, offset=offset
        )
        return [line for at, line in itertools.takewhile(lambda entry: entry[0] < end, numbered)]

    def _plain(self, found: Surveyed, offset: int) -> BufferedReader:
        if self._handle is None or self._handle[0] != found.number:
            if self._handle is not None:
                self._handle[1].close()
            self._handle = found.number, open_plain(found.plain or found.input.path)
        self._handle[1].seek(offset)
        return self._handle[1]

    def line(self, number: int, offset: int, line: int) -> Line:
        """One line of input `number` by where it lies."""
        found = self._survey.inputs[number]
        handle = self._plain(found, offset)
        return next(lines(handle, found.input.source, self._survey.line_limit, number=line, offset=offset))[1]

    def places(self, unit: int) -> Iterator[tuple[int, int, int]]:
        """(input, offset, line) of every line of a unit, in the order of the inputs."""
        query = "SELECT input, offset, number FROM line WHERE unit = ? ORDER BY input, offset"
        yield from self._survey.index.execute(query, (unit,))

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
