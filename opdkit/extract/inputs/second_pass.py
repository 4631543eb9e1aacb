"""Second pass over the inputs: reads only the units of one part, from where the first pass found them."""

import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from io import BufferedReader
from itertools import islice
from typing import Any, NamedTuple

from opdkit.chat.conversation import Unreadable
from opdkit.extract.formats.reader import Line
from opdkit.extract.inputs.files import lines, open_plain, packing
from opdkit.extract.inputs.first_pass import END, Mark, Survey, SurveyedInput
from opdkit.extract.inputs.index import read_copy
from opdkit.extract.inputs.parquet import read_rows

_SKIPPED = 1 << 20  # bytes per read while skipping to an offset in a packed file


class Unit(NamedTuple):
    """Lines that are read together: see Reader."""

    surveyed: SurveyedInput
    name: str | None  # the last part of its session ids; None: the line number
    lines: Sequence[Line]
    problem: Unreadable | None = None  # why there are no lines
    number: int = 0  # counted over the named units of all inputs


class Units:
    """Reader of the units of parts. Raises OpdkitError if an input has changed since the first pass."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.index = sqlite3.connect(survey.index)
        # Parts are mostly read in order, so the last input stays open, and so does the last Parquet input.
        self._file: tuple[SurveyedInput, BufferedReader, bool] | None = None  # True: packed
        self._at = 0  # offset in the unpacked file; -1: unknown
        self._rows: tuple[SurveyedInput, Iterator[Line]] | None = None
        self._row = 0  # number of the next row of `_rows`

    def close(self) -> None:
        self.index.close()
        if self._file is not None:
            self._file[1].close()
        self._file = self._rows = None

    def read(self, part: int) -> Iterator[Unit]:
        """Yield the units of part `part`, in order."""
        if part >= self.survey.parts:  # all inputs were set aside
            return
        begin, end = self.survey.borders[part : part + 2]
        for surveyed in self.survey.inputs[begin.input : end.input + 1]:
            start = begin if surveyed.number == begin.input else Mark(surveyed.number, 0)
            stop = end.at if surveyed.number == end.input else END + 1
            if surveyed.format is None or start.at >= stop:
                continue
            if not surveyed.has_line_units:
                yield from self._look_up(surveyed, max(start.at, surveyed.units.start), min(stop, surveyed.units.stop))
            elif start.at < surveyed.size:  # a part may begin with the damage after the last line
                read = self._read_rows if surveyed.is_parquet else self.lines_from
                for line in read(surveyed, start, min(stop, surveyed.size)):
                    yield Unit(surveyed, None, (line,))
            if surveyed.problem is not None and start.at <= END < stop:
                yield Unit(surveyed, None, (), surveyed.problem)
            surveyed.check_unchanged()

    def _read_rows(self, surveyed: SurveyedInput, start: Mark, stop: int) -> Iterator[Line]:
        """Yield the rows of a Parquet file from `start` up to row `stop`."""
        if self._rows is None or self._rows[0] is not surveyed or self._row != start.at:
            rows = read_rows(surveyed.path, surveyed.input.source, self.survey.line_limit, start.at)
            self._rows, self._row = (surveyed, rows), start.at
        for line in islice(self._rows[1], stop - start.at):
            self._row += 1
            yield line

    def lines_from(self, surveyed: SurveyedInput, start: Mark, stop: int) -> Iterator[Line]:
        """Yield the lines from `start` up to the offset `stop`, both counted in the unpacked input."""
        if self._file is None or self._file[0] is not surveyed or (self._file[2] and not 0 <= self._at <= start.at):
            if self._file is not None:
                self._file[1].close()
            packed = bool(surveyed.documents or packing(surveyed.path))
            self._file, self._at = (surveyed, open_plain(surveyed.path, surveyed.documents), packed), 0
        _, handle, packed = self._file
        if not packed:
            handle.seek(start.at)
        while packed and self._at < start.at:  # a packed stream only goes forward
            skipped = len(handle.read(min(_SKIPPED, start.at - self._at)))
            if not skipped:  # the file was cut short since: `check_unchanged` raises
                break
            self._at += skipped
        self._at = -1  # unknown until all lines are read
        source, limit = surveyed.input.source, self.survey.line_limit
        for _, line in lines(handle, source, limit, number=start.line, offset=start.at, stop=stop):
            yield read_copy(line) if surveyed.copied else line
        self._at = stop

    def _look_up(self, surveyed: SurveyedInput, first: int, stop: int) -> Iterator[Unit]:
        """Yield the units from number `first` up to `stop`: sessions between headers, or the lines of logged ids."""
        for number in range(first, stop):
            (name,) = self.index.execute("SELECT name FROM unit WHERE number = ?", (number,)).fetchone()
            if surveyed.reader.grouping == "session":
                query = "SELECT offset, number, bytes FROM line WHERE unit = ?"
                offset, line, size = self.index.execute(query, (number,)).fetchone()
                session = list(self.lines_from(surveyed, Mark(surveyed.number, offset, line), offset + size))
                yield Unit(surveyed, name, session, number=number)
            else:
                stored = _StoredLines(self, number)
                yield Unit(surveyed, name, stored, number=number)
                for other in sorted(set(stored.places[::3])):
                    self.survey.inputs[other].check_unchanged()


class _StoredLines(Sequence[Line]):
    """Lines of one unit, from any inputs. Each line is read when it is accessed: one id may own a whole log."""

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
        surveyed = self._units.survey.inputs[number]
        return next(self._units.lines_from(surveyed, Mark(number, offset, line), offset + 1))
