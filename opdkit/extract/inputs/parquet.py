"""Parquet inputs: every row is a record and is read as a line. The line's number is the row's, from 1.

Rows are read in small batches, so that memory does not grow with the file.
"""

from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from opdkit.chat.conversation import Unreadable
from opdkit.extract.formats.json_lines import NOT_UTF_8
from opdkit.extract.formats.reader import Line
from opdkit.extract.inputs.files import SHOWN
from opdkit.extract.inputs.table_rows import dump_row

_BATCH = 4 << 20  # about as many bytes of decoded rows are held at once
_MOST_ROWS = 1_024  # per batch
DAMAGED_ROWS = "damaged rows"


def plan_row_chunks(path: Path, part_bytes: int) -> tuple[int, list[tuple[int, int]]]:
    """Return (number of rows, [(first row, bytes) of each piece of about `part_bytes`]), from the footer alone."""
    with pq.ParquetFile(path) as file:  # it also checks the names of the columns, unlike `read_metadata`
        metadata = file.metadata
    chunks: list[tuple[int, int]] = []
    first = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
        step = max(1, part_bytes // row_bytes)
        for start in range(0, group.num_rows, step):
            chunks.append((first + start, row_bytes * min(step, group.num_rows - start)))
        first += group.num_rows
    return metadata.num_rows, chunks


def read_rows(path: Path, source: str, limit: int, start: int = 0) -> Iterator[Line]:
    """Yield the rows of a file from row `start` (from 0) on, as lines; rows of damaged pages come with a problem.

    `limit` is the most bytes of a row as JSON. Raises ArrowInvalid if the footer is damaged.
    """
    # Column chunks are read as they are used: a row group may be as large as the file.
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16) as file:
        stop = 0
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            row, stop = stop, stop + group.num_rows
            if max(row, start) >= stop:
                continue
            size = min(_MOST_ROWS, max(1, _BATCH // max(1, group.total_byte_size // group.num_rows)))
            try:
                for batch in file.iter_batches(size, row_groups=[number]):
                    skipped = min(max(0, start - row), batch.num_rows)
                    yield from _read_lines(batch.slice(skipped), source, row + skipped + 1, limit)
                    row += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # a failing disk
                lost = Unreadable(DAMAGED_ROWS, f"rows {max(row, start) + 1:,} to {stop:,}: {error}"[:500])
                for missing in range(max(row, start), stop):
                    yield Line(source, missing + 1, b"", lost)


def _read_lines(batch: pa.RecordBatch, source: str, first: int, limit: int) -> Iterator[Line]:
    """Yield rows as lines of JSON, numbered from `first`. Rows that cannot be read come with a problem."""
    try:
        rows = batch.to_pylist()
    except (ValueError, OverflowError) as error:  # damaged text, or a time that Python cannot represent
        if batch.num_rows == 1:
            reason = NOT_UTF_8 if isinstance(error, UnicodeDecodeError) else DAMAGED_ROWS
            yield Line(source, first, b"", Unreadable(reason, str(error)[:500]))
            return
        for index in range(batch.num_rows):
            yield from _read_lines(batch.slice(index, 1), source, first + index, limit)
        return
    for number, row in enumerate(rows, first):
        try:
            data = dump_row(row)
        except orjson.JSONEncodeError as error:
            yield Line(source, number, b"", Unreadable("not JSON", str(error)[:500]))
            continue
        too_long = Unreadable("line too long", f"{len(data):,} bytes") if len(data) > limit else None
        yield Line(source, number, data[:SHOWN] if too_long else data, too_long)
