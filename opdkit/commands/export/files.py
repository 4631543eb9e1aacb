"""The files of an export: rows in, one Parquet or JSONL file out, a part of the run at a time."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from opdkit.commands.export.messages import dumped
from opdkit.config.fields import JSON
from opdkit.errors import ConfigError
from opdkit.store.atomic import move_first, sync
from opdkit.store.disk import disk_errors_explained
from opdkit.store.reading import read_arrow

# Role and text, as everything reads it. Other messages hold objects of any shape (a call's arguments): as JSON, which
# `datasets` gives back as it was. As a struct each message would get every key of all others, and templates that ask
# whether a message has `tool_calls` would see that all of them do.
PLAIN = pa.struct({"role": pa.string(), "content": pa.string()})
ANY = pa.json_(pa.string())
_GROUP_ROWS = 256  # a row holds its whole prompt: few enough for any memory, enough to compress


class Writer(Protocol):
    """Takes one row after the other; few are in memory at a time."""

    def write(self, row: JSON) -> None: ...


class _Jsonl:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="\n")

    def write(self, row: JSON) -> None:
        self._file.write(dumped(row) + "\n")

    def close(self) -> None:
        self._file.close()


class _Parquet:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema, self._file = schema, pq.ParquetWriter(path, schema, compression="zstd")
        self._waiting: list[JSON] = []

    def write(self, row: JSON) -> None:
        self._waiting.append(row)
        if len(self._waiting) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        columns = [_column(field.type, [row[field.name] for row in self._waiting]) for field in self._schema]
        self._file.write_table(pa.Table.from_arrays(columns, schema=self._schema))
        self._waiting = []

    def close(self) -> None:
        if self._waiting:
            self._flush()
        self._file.close()


def _column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if kind != pa.list_(ANY):
        return pa.array(values, kind)
    texts = pa.array([[dumped(item) for item in items] for items in values], pa.list_(pa.string()))
    return texts.cast(kind)


@contextlib.contextmanager
def whole(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """A file to write in place of `path`: it is there when the block ends well, else what was there before.

    Raises ConfigError when it exists and is not to be overwritten, OpdkitError when the disk is full or read-only.
    """
    refuse_existing(path, overwrite=overwrite)
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        with disk_errors_explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            sync(temporary)
            if overwrite:
                temporary.replace(path)
            elif not move_first(temporary, path):
                refuse_existing(path, overwrite=False)
    except BaseException:
        temporary.unlink(missing_ok=True)
        for folder in missing:  # made for nothing, unless another process has put something there
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path, schema: pa.Schema, *, overwrite: bool) -> Iterator[Writer]:
    """A writer to `path`: .jsonl, or Parquet of `schema`. Raises what `whole` raises."""
    with whole(path, overwrite=overwrite) as temporary:
        file = _Jsonl(temporary) if path.suffix == ".jsonl" else _Parquet(temporary, schema)
        with contextlib.closing(file) as out:
            yield out


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raise ConfigError when `path` is a folder, or a file that is not to be overwritten."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the file to write")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} is there already; name another file, or pass --overwrite to replace it")


def message_type(run: Path, parts: int) -> pa.DataType:
    """The Arrow type of the run's messages in Parquet: PLAIN where all of them are role and text, else ANY."""
    for part in range(parts):
        messages = read_arrow(run, "sessions", part, ["messages"])["messages"].combine_chunks().flatten()
        told = [len(messages) - messages.field(name).null_count for name in ("reasoning", "name", "tool_call_id")]
        if any(told) or len(messages.field("tool_calls").flatten()):
            return ANY
    return PLAIN
