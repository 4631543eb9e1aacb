"""Inputs that grow, recognised from night to night even if they are renamed, packed or rewritten."""

import contextlib
import os
import tempfile
from ast import literal_eval
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_128

from opdkit.chat.conversation import Unreadable
from opdkit.console import warn
from opdkit.errors import ConfigError, OpdkitError
from opdkit.extract.formats.json_lines import find_id, parse
from opdkit.extract.formats.reader import Line, Reader
from opdkit.extract.inputs.files import Input, LogFile, find_documents, find_files, lines, packing, unpack_members
from opdkit.extract.inputs.first_pass import copy_plain, read_file_state
from opdkit.extract.ledger import open_ledger

_BLOCK, START = 1 << 14, 256  # bytes


@dataclass
class KnownInput:
    """Input as the ledger knows it: a row of its table `input`."""

    number: int
    path: bytes  # of the file; b"": another input has its place
    member: str  # name of the archive member that it is, or ""
    name: str
    format: str
    is_plain: bool  # the file itself holds its plain JSON lines
    read: int = 0  # bytes of these lines that were read
    start: bytes = b""  # digest of the first `START` bytes that were read
    seal: bytes = b""  # digest of the first and last block that were read
    session: int = 0  # offset of the last session; also 0 if sessions lack ids or share one
    last: str | None = None  # id of the last record; the next record without an id has this id


@dataclass
class Source:
    """Input that is new or has changed."""

    input: Input
    file: bytes  # path of the file that it is, or of its archive
    member: str
    is_plain: bool
    path: Path  # of its plain JSON lines
    known: KnownInput | None = None
    is_rewritten: bool = False
    state: tuple[int, ...] = ()  # of `path` before it was read: see read_file_state

    def check_unchanged(self) -> None:
        """Raise OpdkitError if `path` is no longer the file that was read. It may have grown."""
        (size, _, inode), known = read_file_state(self.path), self.known
        is_another = known is not None and not self.is_rewritten and not begins_with(self.path, known.read, known.seal)
        if inode != self.state[2] or size < self.state[0] or is_another:
            raise OpdkitError(f"{self.input.source} changed while it was read; run the night again")


@dataclass
class FileSession:
    """Session of a file, from its header up to the next header."""

    id: str | None  # escaped
    name: str  # its id, or "line" and the number of its first line
    start: int  # bytes
    stop: int = 0
    new_lines: int = 0  # after what was read before
    digest: xxh3_128 = field(default_factory=xxh3_128)  # of its lines


class LogFiles(NamedTuple):
    """Files behind the logs, by their resolved paths."""

    names: dict[bytes, str]  # of all files that exist, in order, as the user named them
    states: dict[bytes, str]
    sizes: dict[bytes, int]  # in the last night
    changed: list[LogFile]  # since then, or new


def find_changed_files(ledger: Path, logs: Sequence[str], folder: Path) -> LogFiles:
    """Find the files behind the logs, and those that are new or changed since the last night. No file is opened.

    Raises ConfigError for logs that cannot grow or do not exist.
    """
    for log in logs:
        if log == "-" or log.startswith("hf:") or Path(log).is_fifo():
            raise ConfigError(f"{log}: only files and folders are followed as they grow")
    listed = list(find_files(logs, folder, rotated=True))
    with open_ledger(ledger) as connection:
        before = dict(connection.execute("SELECT path, state FROM file"))
    files = LogFiles({}, {}, {file: literal_eval(state)[0] for file, state in before.items()}, [])
    for log_file in listed:
        with leaving_to_next_night(log_file):
            file, state = os.fsencode(log_file.path.resolve()), repr(read_file_state(log_file.path))
            files.names[file], files.states[file] = log_file.source.encode("utf-8", "replace").decode(), state
            if before.get(file) != state:
                files.changed.append(log_file._replace(path=log_file.path.resolve()))
    return files


def open_sources(log: LogFile, plain: Mapping[bytes, KnownInput], scratch: Path, line_limit: int) -> Iterator[Source]:
    """Yield the inputs in a file, as plain JSON lines unless they have a problem.

    `plain` maps files that held plain JSON lines to their inputs. Such a file still does if its beginning is unchanged.
    """
    file, folder = os.fsencode(log.path), Path(tempfile.mkdtemp(dir=scratch))
    for number, entry in enumerate(unpack_members(log, folder / "zip", {})):
        member = entry.source.removeprefix(log.source.encode("utf-8", "replace").decode())
        source = Source(entry, file, member, True, entry.path)
        if entry.problem is not None:
            warn(f"{entry.source} is set aside: {entry.problem.reason} ({entry.problem.detail})")
            yield source
            continue
        source.state = read_file_state(entry.path)
        kind, known = packing(entry.path), plain.get(file)
        if kind or known is None or not (known.read and begins_with(entry.path, known.read, known.seal)):
            documents = "" if kind == "parquet" else find_documents(entry.path, line_limit)
            if documents or kind:
                source.is_plain, source.path = False, folder / f"plain-{number}.jsonl"
                if problem := copy_plain(entry, documents, line_limit, source.path):
                    warn(f"{entry.source}: {problem.reason} ({problem.detail})")
                source.state = read_file_state(source.path)
        yield source


def match_sources(sources: Sequence[Source], inputs: Mapping[int, KnownInput], files: LogFiles) -> list[KnownInput]:
    """Find the known input that each source continues: the one at its path, else any that has the same beginning.

    The content of a file decides, not its inode: a packed copy has another inode, and a new file may get an old one. A
    source that continues no input counts as rewritten if an input at its path was not found elsewhere. Return the
    inputs whose path another input has taken.
    """
    changed = {source.file for source in sources}
    free = {n: known for n, known in inputs.items() if known.path in changed or known.path not in files.names}
    by_place = defaultdict[tuple[bytes, str], list[KnownInput]](list)
    by_start = defaultdict[bytes, list[KnownInput]](list)
    for known in sorted(free.values(), key=lambda known: known.read, reverse=True):  # the longest one first
        by_place[known.path, known.member].append(known)
        by_start[known.start].append(known)
    lengths = sorted({min(known.read, START) for known in free.values() if known.read}, reverse=True)
    for rule in ("in its place", "anywhere", "rewritten"):
        for source in (source for source in sources if source.known is None):
            candidates = by_place[source.file, source.member]
            if rule == "anywhere":
                starts = (digest_ends(source.path, length, START) for length in lengths)
                candidates = [known for start in starts for known in by_start[start]]
            for known in (known for known in candidates if known.number in free):
                if rule == "rewritten" or begins_with(source.path, known.read, known.seal):
                    source.known = free.pop(known.number)
                    # Nothing was appended to a file of the same size. Reading all of it tells whether it was edited.
                    same_size = source.path.stat().st_size in (known.read, files.sizes.get(known.path))
                    source.is_rewritten = rule == "rewritten" or same_size
                    break
    return [known for known in free.values() if known.path in changed]


def begins_with(path: Path, size: int, seal: bytes) -> bool:
    """Return True if a file begins with `size` bytes whose first and last block have the digest `seal`."""
    return path.stat().st_size >= size and digest_ends(path, size) == seal


def digest_ends(path: Path, size: int, block: int = _BLOCK) -> bytes:
    """Return the digest of the first and the last block of the first `size` bytes of a file."""
    digest = xxh3_128()
    with path.open("rb", buffering=0) as handle:
        for start in (0, max(0, size - block)):
            handle.seek(start)
            digest.update(handle.read(min(size, block)))
    return digest.digest()


def read_head(path: Path) -> bytes:
    with path.open("rb", buffering=0) as handle:
        return handle.read(_BLOCK)


def read_whole_lines(source: Source, start: int, line_limit: int) -> Iterator[tuple[int, int, Line]]:
    """Yield (offset, offset after it, line) for each line from the offset `start` on.

    The last line counts only if it has a line end or is complete JSON: otherwise its rest may still be written.
    """
    with source.path.open("rb") as handle:
        handle.seek(start)
        for offset, line in lines(handle, source.input.source, line_limit, offset=start):
            stop = handle.tell()
            if not line.data.endswith(b"\n") and os.pread(handle.fileno(), 1, stop - 1) != b"\n":
                try:
                    parse(line)
                except Unreadable:
                    return
            yield offset, stop, line


def list_sessions(source: Source, reader: Reader, begin: int, read: int, line_limit: int) -> list[FileSession]:
    """Return the sessions between headers from the byte `begin` on. Lines from the byte `read` on are new."""
    sessions: list[FileSession] = []
    name = None
    for offset, stop, line in read_whole_lines(source, begin, line_limit):
        before, name = name, find_id(reader, line)
        if not sessions or reader.begins_session(name, before, sessions[-1].id):
            sessions.append(FileSession(name or None, name or f"line{line.number}", offset))
        session = sessions[-1]
        session.stop = stop
        session.new_lines += offset >= read
        session.digest.update(line.data.strip() + b"\n")
    return sessions


@contextlib.contextmanager
def leaving_to_next_night(log: LogFile) -> Iterator[None]:
    """Warn of a file that the block cannot read; if the user named the file itself, raise the error."""
    try:
        yield
    except OSError as why:
        if log.given:
            raise
        warn(f"{log.source} is left for the next night: {why.strerror}")


@contextlib.contextmanager
def naming_lost_files() -> Iterator[None]:
    """Raise OpdkitError if a log is moved away while the block reads it."""
    try:
        yield
    except FileNotFoundError as why:
        raise OpdkitError(f"{why.filename} changed while it was read; run the night again") from None
