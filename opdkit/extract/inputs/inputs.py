"""What the user named -> files to read: folders are searched, standard input and data sets are written down first."""

import io
import math
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from opdkit.chat.conversation import Unreadable
from opdkit.console import warn
from opdkit.errors import ConfigError
from opdkit.extract.formats.reader import Line

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_BUFFER = 1 << 20
_SHOWN = 8_192  # bytes of an over-long line that are kept to show it


@dataclass(frozen=True)
class Input:
    """One file to read."""

    name: str  # unique in the run, without a colon: the first part of every session id
    source: str  # as the user named it
    path: Path
    given: bool  # named on the command line, not found in a folder


def expand(logs: Sequence[str], scratch: Path) -> list[Input]:
    """The inputs in the order in which they are read. Raises ConfigError for what is not there."""
    found = [
        (source, path, given) for number, log in enumerate(logs) for source, path, given in _open(log, scratch, number)
    ]
    inputs: list[Input] = []
    seen: set[Path] = set()
    names: set[str] = set()
    for source, path, given in found:
        if path.resolve() in seen:
            warn(f"{source} is named twice; it is read once")
            continue
        seen.add(path.resolve())
        name = _unique(_stem(source), names)
        names.add(name)
        inputs.append(Input(name, _utf8(source), path, given))
    return inputs


def _open(log: str, scratch: Path, number: int) -> Iterator[tuple[str, Path, bool]]:
    if log == "-":
        yield "-", _spool_stdin(scratch / f"stdin-{number}.jsonl"), True
    elif log.startswith("hf:"):
        yield log, _spool_dataset(log, scratch / f"dataset-{number}.jsonl"), True
    elif (path := Path(log)).is_dir():
        files = sorted(p for p in path.rglob("*") if p.name.endswith(SUFFIXES) and p.is_file() and not _of_a_run(p))
        if not files:
            raise ConfigError(f"the folder {log} holds no {', '.join(SUFFIXES)} files")
        yield from ((str(p), p, False) for p in files)
    elif path.exists():
        yield log, path, True
    else:
        raise ConfigError(f"{log} is not there; name JSONL or Parquet files, folders of them, - or hf:NAME")


def _of_a_run(path: Path) -> bool:
    """True for the tables that opdkit itself has written, and for what it has exported of them."""
    table = path.suffix == ".parquet" and (path.parents[1] / "manifest.json").exists()
    return table or (path.parent.name == "export" and (path.parents[1] / "extract" / "manifest.json").exists())


def _stem(source: str) -> str:
    if source == "-":
        return "stdin"
    name = Path(source.removeprefix("hf:")).name
    for suffix in (".gz", ".zst", ".jsonl", ".json", ".parquet"):
        name = name.removesuffix(suffix)
    return re.sub(r"[:\s]", "_", _utf8(name)) or "log"


def _unique(stem: str, taken: set[str]) -> str:
    name, count = stem, 1
    while name in taken:
        count += 1
        name = f"{stem}-{count}"
    return name


def _utf8(text: str) -> str:
    """A file name may hold any bytes, a table only UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _spool_stdin(path: Path) -> Path:
    """Standard input can be read once, but is needed twice: to pin its digest, and to extract."""
    with path.open("wb") as out:
        shutil.copyfileobj(sys.stdin.buffer, out, _BUFFER)
    return path


def _spool_dataset(log: str, path: Path) -> Path:
    """A data set as JSONL, one row a line. `hf:NAME[:SPLIT]`; NAME may be a local folder; SPLIT is train."""
    import datasets  # slow to import, and rarely needed

    name = log.removeprefix("hf:")
    split = "train"
    if not Path(name).exists() and ":" in name:
        name, split = name.rsplit(":", 1)
    try:
        rows = datasets.load_dataset(name, split=split, streaming=True)
        with path.open("wb") as out:
            for row in rows:
                out.write(orjson.dumps(row, default=_placeholder, option=orjson.OPT_APPEND_NEWLINE))
    except (OSError, ValueError, TypeError, datasets.exceptions.DatasetsError) as error:
        raise ConfigError(f"{log} cannot be loaded: {error}") from error
    return path


def _placeholder(value: Any) -> str:
    """What JSON cannot hold, such as a decoded image."""
    return f"[{type(value).__name__}]"


# -- lines -----------------------------------------------------------------------------------------------------------


def compression(path: Path) -> str | None:
    """gzip, zstd or None, by what the file begins with and not by its name."""
    with path.open("rb") as handle:
        head = handle.read(4)
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def open_plain(path: Path) -> io.BufferedReader:
    """The file, unpacked where it is compressed. Reading raises what `is_damage` knows if it is cut short."""
    kind = compression(path)
    if kind is None:
        return io.BufferedReader(path.open("rb", buffering=0), _BUFFER)
    stream = pa.input_stream(str(path), compression=kind)
    # Where the archive breaks off, the buffer that is being filled is lost: keep it small.
    return io.BufferedReader(stream, 1 << 16)


def is_damage(error: Exception) -> bool:
    """True for a broken compressed stream; False for a failing disk, whose errors carry a number."""
    return isinstance(error, pa.ArrowException) or (isinstance(error, OSError) and error.errno is None)


def lines(
    handle: io.BufferedIOBase, source: str, limit: int, *, number: int = 1, offset: int = 0, stop: float = math.inf
) -> Iterator[tuple[int, Line]]:
    """(byte offset, line) of every line that is not blank, from where `handle` stands to where `stop` is, an offset.

    A line of more than `limit` bytes comes with a problem and its beginning only: never more than `limit` bytes of one
    line are held.
    """
    while offset < stop:
        data = handle.readline(limit + 1)
        if not data:
            return
        start = offset
        offset += len(data)
        if start == 0 and data.startswith(b"\xef\xbb\xbf"):
            data = data[3:]
        if len(data) > limit and not data.endswith(b"\n"):
            size = len(data) + _skip_rest(handle)
            offset = start + size
            yield start, Line(source, number, data[:_SHOWN], Unreadable("line too long", f"{size:,} bytes"))
        elif data and not data.isspace():
            yield start, Line(source, number, data)
        number += 1


def _skip_rest(handle: io.BufferedIOBase) -> int:
    """Read on to the end of the line; how many bytes that was."""
    skipped = 0
    while chunk := handle.readline(_BUFFER):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped
