"""Pieces of growing logs that make up the news of a night: read from their files, and written as one log."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_128_digest

from opdkit.console import counted, warn
from opdkit.extract.formats.reader import Line, Reader
from opdkit.extract.inputs.files import lines
from opdkit.extract.inputs.index import unfold_line

_BUFFER = 1 << 16  # bytes


class Piece(NamedTuple):
    """Piece of plain JSON lines: all lines between two bytes, or where there is a digest, one record of a line."""

    path: Path
    start: int
    stop: int
    format: str = ""
    record: int = 0  # number of the record in its line
    digest: bytes = b""  # what the record must still be


def write_pieces(pieces: Sequence[Piece], path: Path, reader: Callable[[str], Reader], line_limit: int) -> None:
    """Write the lines of one log of the night. Records that are no longer what they were are left out, with a warning.

    The pieces of a file stand together: one file is open at a time. `reader` returns the reader of a format.
    """
    lost: Counter[Path] = Counter()
    with path.open("wb") as out:
        for source, own in groupby(pieces, lambda piece: piece.path):
            with source.open("rb") as handle:
                for piece in own:
                    at, last = piece.start, b""
                    handle.seek(at)
                    while not piece.digest and (data := handle.read(min(_BUFFER, piece.stop - at))):
                        at, last = at + out.write(data), data
                    if piece.digest:
                        line = next((line for _, line in lines(handle, "", line_limit, offset=at)), Line("", 0, b""))
                        records = split_records(reader(piece.format), line)
                        last = records[piece.record] if piece.record < len(records) else b""
                        if xxh3_128_digest(last.strip()) != piece.digest:
                            lost[source] += 1
                            continue
                        out.write(last)
                    if not last.endswith(b"\n"):
                        out.write(b"\n")
    for source, count in lost.items():
        warn(f"{source} was edited: {counted(count, 'record')} of continued sessions could not be found in it again")


def split_records(reader: Reader, line: Line) -> list[bytes]:
    """Return the records on a line as JSON: mostly one, the line itself."""
    records = [line] if reader.unfold is None else unfold_line(line, reader.unfold)
    return [line.data] if any(record.problem for record in records) else [record.data for record in records]
