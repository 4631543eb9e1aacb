"""Files behind the arguments of `opdkit extract`: found, unpacked, split into lines.

Folders are searched. Standard input and data sets are first copied to a temporary file.
"""

import contextlib
import gzip
import io
import math
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from opdkit.chat.conversation import Unreadable
from opdkit.config.commands import STAGES
from opdkit.console import warn
from opdkit.errors import ConfigError
from opdkit.extract.formats.json_lines import NOT_AN_OBJECT, parse
from opdkit.extract.formats.reader import Line
from opdkit.extract.inputs.archives import unpack
from opdkit.extract.inputs.documents import MESSAGES, OBJECTS, DocumentReader
from opdkit.extract.inputs.table_rows import dump_row
from opdkit.store.atomic import find_left_overs, host_name, make_owned_name, remove_entries

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz", ".json.zst", ".parquet")
SHOWN = 8_192  # bytes of an over-long line that are kept to show it
# OpenClaw appends it to a session that the user began anew, and compresses such sessions
_RESET = re.compile(r"\.reset\.(\d{4}-[\dTZ:-]+(?:\.\d+Z)?)(?:\.[\da-f]{32})?(?:\.zst)?$")
_COPIED = re.compile(r"\.checkpoint\.[\da-f-]{36}\.jsonl$")  # OpenClaw's copy of a session before it is summarised
# Or what logrotate and Python's logging append to the name of a log: .1, .2.gz, -20261124, .2026-11-24
_ROTATED = re.compile(rf"{_RESET.pattern}|[.-](\d[\d_-]*)(\.gz|\.zst)?$")
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PAR1": "parquet", b"PK\x03\x04": "zip",
          b"PK\x05\x06": "zip"}  # fmt: skip
_BUFFER = 1 << 20
_SCRATCH = "opdkit-extract-"
_OF_MESSAGE = frozenset(("role", "content", "parts", "name", "ts", "timestamp", "createdAt"))
_RUN_FOLDERS = {"export", *STAGES} - {"rollout"}  # rollout writes the folders of extract and judge


class LogFile(NamedTuple):
    """File behind the arguments of `opdkit extract`; a zip archive may hold several inputs."""

    source: str  # as the user named it
    path: Path
    given: bool  # named on the command line, not found in a folder


@dataclass(frozen=True)
class Input:
    """File to read, or member of an archive."""

    name: str  # unique in the run, without a colon: the first part of every session id
    source: str  # as the user named it
    path: Path
    given: bool  # named on the command line, not found in a folder or an archive
    problem: Unreadable | None = None  # why it is not read
    copied: bool = False  # `path` was written by index.copy_lines


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder. First remove those that killed processes of this host left: they may be large."""
    remove_entries(find_left_overs(Path(tempfile.gettempdir()), f"{_SCRATCH}*-{host_name()}-*"))
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, suffix=make_owned_name("")) as folder:
        yield Path(folder)


def expand(logs: Sequence[str], scratch: Path) -> list[Input]:
    """Return the inputs in the order in which they are read. Raises ConfigError for a log that does not exist.

    `scratch` is the folder for copies of standard input and of data sets.
    """
    inputs, names = list[Input](), dict[str, int]()
    for number, file in enumerate(find_files(logs, scratch), 1):
        inputs += unpack_members(file, scratch / f"zip-{number}", names)
    return inputs


def find_files(logs: Sequence[str], scratch: Path, *, rotated: bool = False) -> Iterator[LogFile]:
    """Yield every file behind `logs`, each once.

    With `rotated`, rotated logs are found too, in folders and beside named files, and a folder may be empty. Only
    standard input, pipes and data sets are opened: they are copied to `scratch`. Raises ConfigError.
    """
    seen: set[Path] = set()
    for number, log in enumerate(logs):
        for source, path in _list_files(log, scratch, number, rotated):
            if path.resolve() in seen:
                warn(f"{source} is named twice; it is read once")
                continue
            seen.add(path.resolve())
            yield LogFile(source, path, source == log)


def unpack_members(file: LogFile, folder: Path, names: dict[str, int]) -> Iterator[Input]:
    """Yield the inputs in a file: the file itself or, if it is a zip archive, its members, unpacked to `folder`.

    Their names differ from those in `names`, and are added to it.
    """
    is_zip = packing(file.path) == "zip"
    for member, copy, problem in unpack(file.path, SUFFIXES, folder) if is_zip else [("", file.path, None)]:
        source = f"{file.source}/{member}" if member else file.source
        source = source.encode("utf-8", "replace").decode()  # a file name may hold any bytes, a table only UTF-8
        yield Input(add_name(choose_stem(source), names), source, copy, file.given and not member, problem)


def add_name(stem: str, names: dict[str, int], between: str = "-") -> str:
    """Return `stem`, with a number appended if `names` holds it already, and add the result to `names`.

    `names` maps each name to the last number that was appended to it.
    """
    name = stem
    while name in names:
        names[stem] += 1
        name = f"{stem}{between}{names[stem]}"
    names[name] = 1
    return name


def _list_files(log: str, scratch: Path, number: int, rotated: bool) -> Iterator[tuple[str, Path]]:
    """Yield (source, path) of every file behind one argument."""
    path = Path(log)
    if log == "-":
        copy = scratch / f"stdin-{number}.jsonl"  # stdin can be read only once, but both passes need it
        with copy.open("wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out, _BUFFER)
        yield "-", copy
    elif log.startswith("hf:"):
        yield log, _copy_dataset(log, scratch / f"dataset-{number}.jsonl")
    elif path.is_dir():
        next(path.iterdir(), None)  # raises if the folder cannot be read; for a folder in it, `walk` warns
        walk = os.walk(path, onerror=lambda why: warn(f"{why.filename} cannot be read, left out: {why.strerror}"))
        suffixes, ending = (*SUFFIXES, ".zip"), _ROTATED if rotated else _RESET
        paths = list[Path]()
        for folder, inner, names in walk:
            paths += (Path(folder, name) for name in names if not _COPIED.search(name))
            for link in (Path(folder, name) for name in sorted(inner) if Path(folder, name).is_symlink()):
                if not link.resolve().is_relative_to(path.resolve()):  # else its files are found in their place
                    warn(f"{link} is a link to a folder, left out: name it, too, if it holds logs")
        named = [p for p in paths if ending.sub("", p.name).endswith(suffixes) and p.is_file()]
        files = sorted((p for p in named if not _is_of_a_run(p)), key=_rank_by_age if rotated else None)
        if not files:
            own = " but those of a run, which are no logs" if named else ""
            text = f"the folder {log} holds no {', '.join(suffixes)} files{own}"
            if not rotated:
                raise ConfigError(text)
            warn(f"{text}: is it the right folder, and is its disk mounted?")
        yield from ((str(file), file) for file in files)
    elif path.exists() and not path.is_file():  # a pipe can be read only once, too
        copy = scratch / f"{number}-{path.name}"
        with path.open("rb") as pipe, copy.open("wb") as out:
            shutil.copyfileobj(pipe, out, _BUFFER)
        yield log, copy
    else:
        near = path.parent.iterdir() if rotated and path.parent.is_dir() else ()
        beside = [p for p in near if p.name != path.name and _strip_rotation(p).name == path.name]
        files = sorted(beside, key=_rank_by_age) + ([path] if path.exists() else [])
        if not files:  # a log that was rotated may not exist until its next line is written
            others = "or folders of them" if rotated else "folders of them, - or hf:NAME"
            raise ConfigError(f"{log} does not exist; name JSON, JSONL, Parquet or zip files, {others}")
        yield from ((log if file is path else str(file), file) for file in files)


def _strip_rotation(path: Path) -> Path:
    """Return the path that a log had before it was rotated."""
    return path.with_name(_ROTATED.sub("", path.name) or path.name)


def _rank_by_age(path: Path) -> tuple[Path, bool, int]:
    """Return a sort key, oldest lines first: rotated logs by rising date or falling number, then the log itself."""
    rotation = _ROTATED.search(path.name)
    digits = re.sub(r"\D", "", rotation[1] or rotation[2]) if rotation else "0"
    return _strip_rotation(path), rotation is None, int(digits) if len(digits) >= len("261124") else -int(digits)


def _is_of_a_run(path: Path) -> bool:
    """Return True if opdkit wrote a file: a table, or any file of a stage, an export or a hidden folder of a run."""
    path = path.absolute()  # with all of its parents, including those of the working directory
    if path.suffix == ".parquet" and _is_manifest(path.parents[1] / "manifest.json"):
        return True
    runs = (folder for folder in path.parents if _is_manifest(folder / "extract" / "manifest.json"))
    names = [path.relative_to(run).parts[0] for run in runs]
    return any(name in _RUN_FOLDERS or name.startswith(".") for name in names)


def _is_manifest(path: Path) -> bool:
    """Return True for the manifest of a stage, even a damaged one, not for the manifest.json of another program."""
    with contextlib.suppress(OSError):
        text = path.read_bytes()
        return b'"fingerprint"' in text and b'"plan"' in text
    return False


def choose_stem(source: str) -> str:
    """Return the name of an input before it is made unique: the file's, without suffixes, `_` for blanks and colons."""
    if source == "-":
        return "stdin"
    name = _RESET.sub("", Path(source.removeprefix("hf:")).name)
    for suffix in (".gz", ".zst", ".jsonl", ".json", ".parquet", ".zip"):
        name = name.removesuffix(suffix)
    return re.sub(r"[:\s]", "_", name) or "log"


def _copy_dataset(log: str, path: Path) -> Path:
    """Write a data set to `path` as JSONL, one row per line; return `path`. Raises ConfigError if it cannot be loaded.

    `log` is `hf:NAME[:SPLIT]`. NAME may be a local folder. SPLIT defaults to train. Images and sound are not decoded,
    which takes other libraries and ends at the first damaged file.
    """
    import datasets  # slow to import, and rarely needed

    name, split = log.removeprefix("hf:"), "train"
    if not Path(name).exists() and ":" in name:
        name, split = name.rsplit(":", 1)
    try:
        rows = datasets.load_dataset(name, split=split, streaming=True)
        rows = rows.decode(False) if rows.features else rows
        with path.open("wb") as out:
            for row in rows:
                out.write(dump_row(row))
    except (OSError, ValueError, TypeError, datasets.exceptions.DatasetsError) as error:
        raise ConfigError(f"{log} cannot be loaded: {error}") from error
    return path


def packing(path: Path) -> str | None:
    """Return "gzip", "zstd", "parquet", "zip" or None, by the first bytes of the file and not by its name.

    A gzip file that was cut off before those bytes are complete is recognised by its name.
    """
    with path.open("rb") as handle:
        head = handle.read(4)
    if path.suffix == ".gz" and b"\x1f\x8b".startswith(head):
        return "gzip"
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


class _Gzip(gzip.GzipFile):
    """Gzip file of which all bytes before any damage are read: `readinto` of the base class drops the last of them."""

    def readinto(self, buffer: Any) -> int:
        size = self.readinto1(buffer)
        if not size and not os.fstat(self.fileno()).st_size:
            raise EOFError("not one byte of the archive is there")
        return size


def open_plain(path: Path, documents: str = "") -> io.BufferedReader:
    """Open a file, unpacked if it is compressed. Reading a truncated archive raises errors that `until_damage` catches.

    `documents` says what is read as a line: see `find_documents`.
    """
    kind = packing(path)
    raw: Any
    if kind == "gzip":
        raw = _Gzip(path)
    elif kind == "zstd":
        import pyarrow as pa

        raw = pa.input_stream(str(path), compression=kind)
    else:
        raw = path.open("rb", buffering=0)
    # Keep the buffer small: if a zstd archive breaks off, it is lost, and each line of a logged id may fill it anew.
    handle = io.BufferedReader(raw, 1 << 16)
    return io.BufferedReader(DocumentReader(handle, documents), 1 << 16) if documents else handle


@contextlib.contextmanager
def until_damage() -> Iterator[list[Exception]]:
    """End the block if a compressed stream breaks off. Then the list that is yielded holds the error.

    Errors of a failing disk, which have an errno, are raised.
    """
    damage: list[Exception] = []
    try:
        yield damage
    except Exception as error:
        import pyarrow as pa  # slow to import: a night without news does not need it

        is_broken = isinstance(error, (pa.ArrowException, EOFError, zlib.error, UnicodeDecodeError))
        if not is_broken and not (isinstance(error, OSError) and error.errno is None):
            raise
        damage.append(error)


def find_documents(path: Path, limit: int) -> str:
    """Return how a file holds its JSON: "" as lines, OBJECTS as an array or as objects of several lines each.

    MESSAGES: it is one conversation, an array of messages without a field that names their conversation. `limit` is
    the longest line, in bytes.
    """
    if _is_json_lines(_read_head(path, limit, "")):
        return ""
    start, *others = (line.data for line in islice(_read_head(path, limit, ""), 3))
    records = islice(_read_head(path, limit, OBJECTS), 21)
    first = next(records, None)
    if first is None:
        return OBJECTS if start.lstrip().startswith(b"[") else ""  # an array without objects
    fields: list[frozenset[str]] = []
    for record in chain([first], records):
        with contextlib.suppress(Unreadable):
            fields.append(frozenset(parse(record)))
    begins_there = start.strip().startswith((b"[", first.data.strip())) or first.data.startswith(start.strip())
    if not (fields and first.data.startswith(b"{") and begins_there):
        return ""
    # Events and items of the Responses API are not messages; nor are records that name their conversation.
    named = fields[0] - ({"id", "metadata"} if "parts" in fields[0] else set())
    are_messages = {"role"} < named <= _OF_MESSAGE and all("type" not in own or "summary" in own for own in fields)
    opening, _, _ = b"".join(data[:99] for data in (start, *others)).partition(b"{")
    return MESSAGES if are_messages and opening.split() == [b"["] else OBJECTS


def _is_json_lines(head: Iterator[Line]) -> bool:
    """Return True for the first lines of JSON lines, and of a file that is empty or not JSON.

    The first of JSON lines is an object. If it is other JSON, such as an array, any line must follow. If it is damaged,
    a later line must be an object, and the line after that must not begin as within an array: with `]`, `}` or a comma.
    """
    first = next(head, None)
    problem = "" if first is None else _find_problem(first)
    if first is None or not problem or not first.data.lstrip().startswith((b"{", b"[")):
        return True
    was_object = False
    for line in head:
        if problem == NOT_AN_OBJECT or (was_object and not line.data.lstrip().startswith((b"]", b"}", b","))):
            return True
        was_object = not _find_problem(line)
    return was_object


def _read_head(path: Path, limit: int, documents: str) -> Iterator[Line]:
    """Yield the first lines of a file that are not blank, up to where it breaks off, if it does."""
    with until_damage(), open_plain(path, documents) as handle:
        yield from (line for _, line in islice(lines(handle, "", limit), 1_000))


def _find_problem(line: Line) -> str:
    """Return why a line is not an object; "" if it is one."""
    try:
        parse(line)
    except Unreadable as problem:
        return problem.reason
    return ""


def lines(
    handle: io.BufferedIOBase, source: str, limit: int, *, number: int = 1, offset: int = 0, stop: float = math.inf
) -> Iterator[tuple[int, Line]]:
    """Yield (byte offset, line) of every line that is not blank, up to the offset `stop`.

    `number` and `offset` are those of the line at which `handle` stands. Of a line of more than `limit` bytes, only the
    beginning is yielded, with a problem: never more than `limit` bytes of one line are held.
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
            while rest := handle.readline(_BUFFER):
                offset += len(rest)
                if rest.endswith(b"\n"):
                    break
            size = offset - start
            yield start, Line(source, number, data[:SHOWN], Unreadable("line too long", f"{size:,} bytes"))
        elif data and not data.isspace():
            yield start, Line(source, number, data)
        number += 1
