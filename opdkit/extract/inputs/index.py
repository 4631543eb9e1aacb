"""Places of the units in an input: pieces of whole lines, sessions between headers, lines that share a logged id.

The places of sessions and ids are kept in a temporary SQLite file, so that memory does not grow with the inputs.
Records without a line of their own (Parquet rows, several records in one line) are copied to a file first.
"""

import sqlite3
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path

import numpy as np
import orjson

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.extract.formats.json_lines import TOO_DEEP, find_id, parse
from opdkit.extract.formats.reader import Line, Reader
from opdkit.extract.inputs.files import SHOWN, until_damage

SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE id (scope INTEGER, key TEXT, unit INTEGER, seen INTEGER, PRIMARY KEY (scope, key)) WITHOUT ROWID;
CREATE TABLE unit (number INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE line (unit INTEGER, input INTEGER, offset INTEGER, number INTEGER, bytes INTEGER,
    PRIMARY KEY (unit, input, offset)) WITHOUT ROWID;
"""
# Count an id in its scope; return the unit of its first record, and the count. The scope of a logged id is the name of
# its format, since records of one session may lie in several inputs.
_COUNT_ID = """INSERT INTO id VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET seen = seen + 1 RETURNING unit, seen"""
_ADD_UNIT = "INSERT INTO unit VALUES (?, ?)"
_ADD_LINE = "INSERT INTO line VALUES (?, ?, ?, ?, ?)"
_SET_SIZE = "UPDATE line SET bytes = ? WHERE unit = ?"
BLOCK = 1 << 16  # bytes; at most as many are lost if an archive breaks off
_NEWLINE = ord("\n")
_PROBLEM = b"\x00"  # begins the copy of a line that could not be read: no line of JSON begins with it


def cut_lines(handle: BufferedReader, part_bytes: int) -> tuple[list[tuple[int, int]], int, bool]:
    """Return ([(offset, line number) of each cut], bytes that hold whole lines, False if the file breaks off).

    The first cut is the beginning of the file. Every other cut is the beginning of the first line that is at least
    `part_bytes` after the previous cut.
    """
    cuts = [(0, 1)]
    size = read = line_ends = 0  # `read` and `line_ends` count what lies before the block
    with until_damage() as damage:
        while block := handle.read1(BLOCK):  # `handle.read` would lose its data if the archive breaks off
            while (end := block.find(b"\n", max(0, cuts[-1][0] + part_bytes - read - 1))) >= 0:
                cuts.append((read + end + 1, line_ends + block.count(b"\n", 0, end + 1) + 1))
            line_ends += int(np.count_nonzero(np.frombuffer(block, np.uint8) == _NEWLINE))  # faster than block.count
            if (last := block.rfind(b"\n")) >= 0:
                size = read + last + 1
            read += len(block)
    return cuts, size if damage else read, not damage  # the last line of a whole file needs no line end


def index_sessions(
    index: sqlite3.Connection,
    input_number: int,
    reader: Reader,
    path: Path,
    first: int,
    numbered: Iterator[tuple[int, Line]],
) -> range:
    """Index the sessions of an input, each from its header up to the next session's. Return their unit numbers.

    Lines before the first header are a session too. `first` is the number of the first unit, `path` the file with the
    lines.
    """
    unit, begin = first - 1, 0
    name: str | None = None
    own: str | None = None  # the id of the session
    for offset, line in numbered:
        before, name = name, find_id(reader, line)
        if unit >= first and not reader.begins_session(name, before, own):
            continue
        if unit >= first:
            index.execute(_SET_SIZE, (offset - begin, unit))
        unit, begin, own = unit + 1, offset, name
        unit_name = name or f"line{line.number}"
        _, seen = index.execute(_COUNT_ID, (input_number, unit_name, unit)).fetchone()
        index.execute(_ADD_UNIT, (unit, unit_name if seen == 1 else f"{unit_name}#{seen}"))
        index.execute(_ADD_LINE, (unit, input_number, offset, line.number, 0))
    if unit >= first:  # a copy that is written meanwhile has its final size only now
        index.execute(_SET_SIZE, (path.stat().st_size - begin, unit))
    return range(first, unit + 1)


def index_ids(
    index: sqlite3.Connection, input_number: int, reader: Reader, first: int, numbered: Iterator[tuple[int, Line]]
) -> range:
    """Index the lines of an input by logged id. Return the numbers of the units that begin in this input.

    A line without an id is a unit of its own, unless it continues the session around it in this format (`carries`).
    """
    fresh = first
    before: int | None = None  # the unit of the line before, if the next line may continue it
    unnamed = False  # that unit has no id yet: a session may begin with lines that have none
    for offset, line in numbered:
        name = find_id(reader, line)
        if name is None and before is not None:
            unit = before
        elif name is not None and before is not None and unnamed:
            unit, fresh = _name_last(index, before, name, reader.name)
            unnamed = False
        else:
            unit, seen = fresh, 1
            if name is not None:
                unit, seen = index.execute(_COUNT_ID, (reader.name, name, fresh)).fetchone()
            if seen == 1:
                index.execute(_ADD_UNIT, (unit, name))
                fresh += 1
            unnamed = name is None
        before = unit if reader.carries else None
        index.execute(_ADD_LINE, (unit, input_number, offset, line.number, len(line.data)))
    return range(first, fresh)


def _name_last(index: sqlite3.Connection, unit: int, name: str, scope: str) -> tuple[int, int]:
    """Name the last unit or, if a unit has that name, move its lines there. Return (the unit, next fresh number)."""
    first, seen = index.execute(_COUNT_ID, (scope, name, unit)).fetchone()
    if seen == 1:
        index.execute("UPDATE unit SET name = ? WHERE number = ?", (name, unit))
        return unit, unit + 1
    index.execute("UPDATE line SET unit = ? WHERE unit = ?", (first, unit))
    index.execute("DELETE FROM unit WHERE number = ?", (unit,))
    return first, unit


def copy_lines(
    numbered: Iterator[tuple[int, Line]], path: Path, unfold: Callable[[JSON], list[JSON]] | None
) -> Iterator[tuple[int, Line]]:
    """Write each line or, with `unfold`, each record of a line to `path`. Yield (its offset there, line)."""
    offset = 0
    with path.open("wb") as out:
        for _, line in numbered:
            for record in unfold_line(line, unfold):
                data = record.data
                if record.problem is not None:
                    note = [record.problem.reason, record.problem.detail, data.decode("utf-8", "replace")]
                    data = _PROBLEM + orjson.dumps(note)
                data = data if data.endswith(b"\n") else data + b"\n"
                out.write(data)
                yield offset, record
                offset += len(data)


def unfold_line(line: Line, unfold: Callable[[JSON], list[JSON]] | None) -> list[Line]:
    """Return one line per record in `line`; `line` alone without `unfold`, or with its problem if it has one."""
    if unfold is None or line.problem is not None:
        return [line]
    try:
        whole = parse(line)
        records = unfold(whole)
        if len(records) == 1 and records[0] is whole:
            return [line]
        return [Line(line.source, line.number, orjson.dumps(record) + b"\n") for record in records]
    except Unreadable as why:
        return [Line(line.source, line.number, line.data[:SHOWN], why)]
    except orjson.JSONEncodeError:
        return [Line(line.source, line.number, line.data[:SHOWN], Unreadable(TOO_DEEP))]


def read_copy(line: Line) -> Line:
    """Return a line of `copy_lines` as it was before it was copied."""
    if not line.data.startswith(_PROBLEM):
        return line
    reason, detail, shown = orjson.loads(line.data[len(_PROBLEM) :])
    return Line(line.source, line.number, shown.encode(), Unreadable(reason, detail))
