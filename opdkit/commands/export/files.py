"""Files of an export: rows in, one Parquet or JSONL file out, complete or absent."""

import contextlib
from collections.abc import Iterator
from itertools import islice
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


def write_rows(path: Path, rows: Iterator[JSON], schema: pa.Schema, *, jsonl: bool) -> None:
    """Write rows to JSONL, or to Parquet of `schema`, with few of them in memory."""
    file: Any
    if jsonl:
        file = path.open("w", encoding="utf-8", newline="\n")
    else:
        file = pq.ParquetWriter(path, schema, compression="zstd")
    with file:
        while batch := list(islice(rows, _GROUP_ROWS)):
            if jsonl:
                file.writelines(dump_json(row) + "\n" for row in batch)
                continue
            columns = []
            for field in schema:
                values = [row[field.name] for row in batch]
                if field.type == pa.list_(ANY):
                    texts = [[dump_json(item) for item in items] for items in values]
                    columns.append(pa.array(texts, pa.list_(pa.string())).cast(field.type))
                else:
                    columns.append(pa.array(values, field.type))
            file.write_table(pa.Table.from_arrays(columns, schema=schema))


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
