"""Files of an export: rows in, one Parquet or JSONL file out, complete or absent."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opdkit.commands.export.messages import dump_json
from opdkit.config.fields import JSON
from opdkit.errors import ConfigError
from opdkit.store.atomic import move_into_place, temporary_file
from opdkit.store.disk import disk_errors_explained
from opdkit.store.reading import read_arrow

# A message of role and text, which every reader takes. Other messages hold objects of any shape (a call's arguments):
# as JSON, which `datasets` returns unchanged. As a struct each message would get every key of all others, and
# templates that ask whether a message has `tool_calls` would see that all of them do.
PLAIN = pa.struct({"role": pa.string(), "content": pa.string()})
ANY = pa.json_(pa.string())
_GROUP_ROWS = 256  # a row holds its whole prompt: few enough for any memory, enough to compress


class RowWriter:
    """Writes one row after the other, to JSONL or to Parquet of `schema`, with few of them in memory."""

    def __init__(self, path: Path, schema: pa.Schema, *, jsonl: bool) -> None:
        self._schema = schema
        self._jsonl = jsonl
        self._file: Any
        if jsonl:
            self._file = path.open("w", encoding="utf-8", newline="\n")
        else:
            self._file = pq.ParquetWriter(path, schema, compression="zstd")
        self._waiting: list[JSON] = []

    def write(self, row: JSON) -> None:
        """Add a row."""
        self._waiting.append(row)
        if len(self._waiting) >= _GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        """Write what is waiting and close the file."""
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        rows, self._waiting = self._waiting, []
        if self._jsonl:
            self._file.writelines(dump_json(row) + "\n" for row in rows)
        elif rows:
            columns = []
            for field in self._schema:
                values = [row[field.name] for row in rows]
                if field.type == pa.list_(ANY):
                    texts = [[dump_json(item) for item in items] for items in values]
                    columns.append(pa.array(texts, pa.list_(pa.string())).cast(field.type))
                else:
                    columns.append(pa.array(values, field.type))
            self._file.write_table(pa.Table.from_arrays(columns, schema=self._schema))


@contextlib.contextmanager
def replaced_file(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary path, and move it to `path` when the block ends well; else what was there before stays.

    Raises ConfigError when it exists and is not to be overwritten, OpdkitError when the disk is full or read-only.
    """
    check_output(path, overwrite=overwrite)
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        with disk_errors_explained(path), temporary_file(path) as temporary:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            if not move_into_place(temporary, path, replace=overwrite):
                check_output(path, overwrite=False)
    except BaseException:
        for folder in missing:  # created in vain, unless another process has put something there
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def check_output(path: Path, *, overwrite: bool) -> None:
    """Raise ConfigError when `path` is a folder, or a file that is not to be overwritten."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the file to write")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} already exists; name another file, or pass --overwrite to replace it")


def message_type(run: Path, parts: int) -> pa.DataType:
    """Return the Arrow type of the run's messages in Parquet: PLAIN where all of them are role and text, else ANY."""
    for part in range(parts):
        messages = read_arrow(run, "sessions", part, ["messages"])["messages"].combine_chunks().flatten()
        counts = [len(messages) - messages.field(name).null_count for name in ("reasoning", "name", "tool_call_id")]
        if any(counts) or len(messages.field("tool_calls").flatten()):
            return ANY
    return PLAIN
