"""Second pass over the inputs: the units of one part, read from where the first pass found them, and nothing else."""

import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, NamedTuple

from opdkit.chat.conversation import Unreadable
from opdkit.extract.formats.reader import Line
from opdkit.extract.inputs.files import compression, lines, open_plain
from opdkit.extract.inputs.index import read_copy
from opdkit.extract.inputs.parquet import Rows
from opdkit.extract.inputs.survey import END, Mark, Survey, SurveyedInput

_SKIPPED = 1 << 20  # bytes read at once to get to a place in a packed file


class Unit(NamedTuple):
    """Unit of the log."""

    log: SurveyedInput
    name: str | None  # the last part of its session ids; None: the line number
    lines: Sequence[Line]
    problem: Unreadable | None = None  # why there are no lines


@dataclass
class _OpenFile:
    """Input that is open."""

    log: SurveyedInput
    handle: BufferedReader
    packed: bool
    at: int = 0  # bytes into what it holds unpacked; -1: unknown


class Units:
    """Reader of the units of parts. Raises OpdkitError when an input has changed since the first pass."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.index = sqlite3.connect(survey.index)
        self._open: _OpenFile | None = None  # parts mostly follow each other, so the last input stays open
        self._rows: tuple[SurveyedInput, Rows] | None = None  # and the last one of Parquet

    def close(self) -> None:
        """Close the index and the inputs."""
        self.index.close()
        if self._open is not None:
            self._open.handle.close()
        if self._rows is not None:
            self._rows[1].close()

    def read(self, part: int) -> Iterator[Unit]:
        """Yield the units of part `part`, in order."""
        if part >= self.survey.parts:  # nothing but inputs that were set aside
            return
        begin, end = self.survey.borders[part : part + 2]
        for log in self.survey.inputs[begin.input : end.input + 1]:
            start = begin if log.number == begin.input else Mark(log.number, 0)
            stop = end.at if log.number == end.input else END + 1
            if log.format is None or start.at >= stop:
                continue
            if not log.by_line:
                yield from self._indexed(log, max(start.at, log.units.start), min(stop, log.units.stop))
            else:
                read = self._rows_from if log.by_row else self.lines_from
                for line in read(log, start, min(stop, log.size)):
                    yield Unit(log, None, (line,))
            if log.problem is not None and start.at <= END < stop:
                yield Unit(log, None, (), log.problem)
            log.check_unchanged()

    def _rows_from(self, log: SurveyedInput, start: Mark, stop: int) -> Iterator[Line]:
        """Yield the rows of a Parquet file from `start` up to row `stop`."""
        if self._rows is None or self._rows[0] is not log or self._rows[1].at != start.at:
            if self._rows is not None:
                self._rows[1].close()
            self._rows = log, Rows(log.path, log.input.source, self.survey.line_limit, start.at)
        for _, line in self._rows[1].read(stop):
            yield line

    def lines_from(self, log: SurveyedInput, start: Mark, stop: int) -> Iterator[Line]:
        """Yield the lines from `start` up to the offset `stop`, both in what the input holds unpacked."""
        file = self._open
        if file is None or file.log is not log or (file.packed and not 0 <= file.at <= start.at):
            if file is not None:
                file.handle.close()
            packed = log.plain is None and compression(log.path) is not None
            file = self._open = _OpenFile(log, open_plain(log.path), packed)
        if not file.packed:
            file.handle.seek(start.at)
        while file.packed and file.at < start.at:  # a packed stream only goes forward
            skipped = len(file.handle.read(min(_SKIPPED, start.at - file.at)))
            if not skipped:  # the file was cut short since: `check_unchanged` raises
                break
            file.at += skipped
        file.at = -1  # until all lines are read
        source, limit = log.input.source, self.survey.line_limit
        for _, line in lines(file.handle, source, limit, number=start.line, offset=start.at, stop=stop):
            yield read_copy(line) if log.copied else line
        file.at = stop

    def _indexed(self, log: SurveyedInput, first: int, stop: int) -> Iterator[Unit]:
        """Yield the sessions, or the ids, from unit `first` up to unit `stop`."""
        for number in range(first, stop):
            (name,) = self.index.execute("SELECT name FROM unit WHERE number = ?", (number,)).fetchone()
            if log.reader.grouping == "session":
                query = "SELECT offset, number, bytes FROM line WHERE unit = ?"
                offset, line, size = self.index.execute(query, (number,)).fetchone()
                yield Unit(log, name, list(self.lines_from(log, Mark(log.number, offset, line), offset + size)))
            else:
                stored = _StoredLines(self, number)
                yield Unit(log, name, stored)
                for other in sorted(set(stored.places[::3])):
                    self.survey.inputs[other].check_unchanged()


class _StoredLines(Sequence[Line]):
    """Lines of one unit, wherever they lie. Each is read when it is asked for: a shared id may own a whole log."""

    def __init__(self, units: Units, unit: int) -> None:
        query = "SELECT input, offset, number FROM line WHERE unit = ? ORDER BY input, offset"
        self.places = array("q", (value for place in units.index.execute(query, (unit,)) for value in place))
        self._units = units

    def __len__(self) -> int:
        return len(self.places) // 3

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number, offset, line = self.places[3 * index : 3 * index + 3]
        log = self._units.survey.inputs[number]
        return next(self._units.lines_from(log, Mark(number, offset, line), offset + 1))
