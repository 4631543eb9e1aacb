"""Where the units of an input lie: parts of whole lines, sessions between headers, lines that share a logged id."""

import hashlib
import itertools
import sqlite3
from collections.abc import Iterator
from io import BufferedReader

import numpy as np

from opdkit.chat.conversation import Unreadable
from opdkit.extract.formats.json_lines import parse
from opdkit.extract.formats.reader import Line, Reader
from opdkit.extract.inputs.surveyed import Mark, Surveyed

# How often an id has come up in its scope, this time included, and the unit where it came up first. Ids that the log
# gives have the format's name for a scope, since records of one session may lie in several inputs.
_COUNT_ID = """INSERT INTO id VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET seen = seen + 1 RETURNING unit, seen"""
BLOCK = 1 << 16  # bytes; as many are lost where an archive breaks off
_NEWLINE = ord("\n")
_LONGEST_NAME = 200  # characters of a logged session id that go into ours


def scan_lines(found: Surveyed, handle: BufferedReader, part_bytes: int) -> None:
    """Where the first line begins, and then the first one at least `part_bytes` behind the one before."""
    cuts = [Mark(found.number, 0)]
    read = before = 0  # bytes and line ends before the block
    try:
        while block := handle.read1(BLOCK):  # `read` would lose what it holds when the archive breaks off
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


def scan_sessions(found: Surveyed, numbered: Iterator[tuple[int, Line]], index: sqlite3.Connection) -> None:
    unit = found.units.start
    # The end last: what is written down while it is read has none before.
    ends = ((path.stat().st_size, 0, "") for path in (found.path,))
    for (offset, number, name), (stop, _, _) in itertools.pairwise(itertools.chain(_headers(numbered), ends)):
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
    return f"line{line.number}" if logged in (None, "") else escaped(str(logged))


def scan_ids(found: Surveyed, numbered: Iterator[tuple[int, Line]], index: sqlite3.Connection) -> None:
    """A unit an id, and a unit each line without one, unless the format hands it to the session around it."""
    carries, scope = found.reader.carries, found.reader.name
    fresh = found.units.start
    before: int | None = None  # the unit of the line before, where the next one may belong to it
    unnamed = False  # whether that has no id yet: a session may begin with lines that have none
    for offset, line in numbered:
        name = _logged_name(found.reader, line)
        if name is None and before is not None:
            unit = before
        elif name is not None and before is not None and unnamed:
            unit, fresh = _name_last(before, name, scope, index)
            unnamed = False
        else:
            unit, seen = fresh, 1
            if name is not None:
                unit, seen = index.execute(_COUNT_ID, (scope, name, fresh)).fetchone()
            if seen == 1:
                index.execute("INSERT INTO unit VALUES (?, ?)", (unit, name))
                fresh += 1
            unnamed = name is None
        before = unit if carries else None
        place = (unit, found.number, offset, line.number, len(line.data))
        index.execute("INSERT INTO line VALUES (?, ?, ?, ?, ?)", place)
    found.units = range(found.units.start, fresh)


def _name_last(unit: int, name: str, scope: str, index: sqlite3.Connection) -> tuple[int, int]:
    """Name the last unit, or add its lines to the one that has the name already: (the unit, the next fresh one)."""
    first, seen = index.execute(_COUNT_ID, (scope, name, unit)).fetchone()
    if seen == 1:
        index.execute("UPDATE unit SET name = ? WHERE number = ?", (name, unit))
        return unit, unit + 1
    index.execute("UPDATE line SET unit = ? WHERE unit = ?", (first, unit))
    index.execute("DELETE FROM unit WHERE number = ?", (unit,))
    return first, unit


def _logged_name(reader: Reader, line: Line) -> str | None:
    """The session id of a record; None for a line that has none."""
    try:
        logged = reader.id_of(parse(line))
    except Unreadable:
        return None
    return None if logged is None else escaped(logged)


def escaped(logged: str) -> str:
    """A logged id as part of ours. `#` is where we count; no two ids become the same."""
    if len(logged) > _LONGEST_NAME:
        logged = f"{logged[:_LONGEST_NAME]}~{hashlib.sha256(logged.encode()).hexdigest()[:16]}"
    return logged.replace("%", "%25").replace("#", "%23")
