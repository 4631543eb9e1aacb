"""Pieces of growing logs that make up the news of a night: copied from their files into one log."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from io import BufferedReader
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_128_digest

from opdkit.console import counted, warn
from opdkit.extract.formats.reader import Line, Reader
from opdkit.extract.inputs.files import lines
from opdkit.extract.inputs.index import unfold_line

_BUFFER = 1 << 16  # bytes


class Piece(NamedTuple):
    """Piece of plain JSON lines: all lines between two byte offsets or, with a digest, one record of a line."""

    path: Path
    start: int
    stop: int
    format: str = ""
    record: int = 0  # number of the record in its line
    digest: bytes = b""  # digest that the record must still have


def write_pieces(pieces: Sequence[Piece], path: Path, readers: Mapping[str, Reader], line_limit: int) -> None:
    """Write the pieces of one log of the night to `path`. Records that have changed are left out, with a warning.

    One file is open at a time, and it is opened once if its pieces are adjacent. `readers`: by format.
    """
    lost: Counter[Path] = Counter()
    with path.open("wb") as out:
        for source, own in groupby(pieces, lambda piece: piece.path):
            with source.open("rb") as handle:
                for piece in own:
                    data = b""
                    for data in _read_piece(handle, piece, readers, line_limit):
                        out.write(data)
                    if not data:
                        lost[source] += 1
                    elif not data.endswith(b"\n"):
                        out.write(b"\n")
    for source, count in lost.items():
        warn(f"{source} was edited: {counted(count, 'record')} of continued sessions could not be found in it again")


def _read_piece(handle: BufferedReader, piece: Piece, readers: Mapping[str, Reader], limit: int) -> Iterator[bytes]:
    """Yield the bytes of a piece, block by block. A record that has changed yields nothing."""
    at = piece.start
    handle.seek(at)
    if piece.digest:
        for _, line in islice(lines(handle, "", limit, offset=at), 1):
            record = split_records(readers[piece.format], line)[piece.record : piece.record + 1]
            yield from (data for data in record if xxh3_128_digest(data.strip()) == piece.digest)
        return
    while data := handle.read(min(_BUFFER, piece.stop - at)):
        at += len(data)
        yield data


def split_records(reader: Reader, line: Line) -> list[bytes]:
    """Return the records of a line as JSON. Most lines are one record, the line itself."""
    records = unfold_line(line, reader.unfold)
    return [line.data] if any(record.problem for record in records) else [record.data for record in records]
