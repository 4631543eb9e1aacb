"""Inputs written down line by line, where their lines are to be found again by their place: rows of Parquet, and the
records of formats that put many into one line."""

from collections.abc import Callable, Iterator
from pathlib import Path

import orjson

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.extract.formats.json_lines import parse
from opdkit.extract.formats.reader import Line

_PROBLEM = b"\x00"  # begins what stands for a line that could not be read: no line of JSON does


def spooled(
    numbered: Iterator[tuple[int, Line]], path: Path, unfold: Callable[[JSON], list[JSON]] | None
) -> Iterator[tuple[int, Line]]:
    """Write the lines to `path`; (offset there, line) of each. With `unfold`, of each record that a line holds."""
    offset = 0
    with path.open("wb") as out:
        for _, line in numbered:
            for piece in _pieces(line, unfold):
                data = piece.data if piece.problem is None else _note(piece)
                data = data if data.endswith(b"\n") else data + b"\n"
                out.write(data)
                yield offset, piece
                offset += len(data)


def _pieces(line: Line, unfold: Callable[[JSON], list[JSON]] | None) -> list[Line]:
    if unfold is None or line.problem is not None:
        return [line]
    try:
        record = parse(line)
        found = unfold(record)
        if len(found) == 1 and found[0] is record:
            return [line]
        return [Line(line.source, line.number, orjson.dumps(piece) + b"\n") for piece in found]
    except Unreadable as why:
        return [Line(line.source, line.number, line.data[:8_192], why)]
    except orjson.JSONEncodeError:
        return [Line(line.source, line.number, line.data[:8_192], Unreadable("nested too deeply"))]


def _note(line: Line) -> bytes:
    assert line.problem is not None
    shown = line.data.decode("utf-8", "replace")
    return _PROBLEM + orjson.dumps([line.problem.reason, line.problem.detail, shown])


def unspooled(line: Line) -> Line:
    """A line as it was before it was written down."""
    if not line.data.startswith(_PROBLEM):
        return line
    reason, detail, shown = orjson.loads(line.data[len(_PROBLEM) :])
    return Line(line.source, line.number, shown.encode(), Unreadable(reason, detail))
