"""What the first pass knows of one input, and how it tells that the input has changed since."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.errors import OpdkitError
from opdkit.extract.formats import READERS
from opdkit.extract.formats.reader import Reader
from opdkit.extract.inputs.inputs import Input


class Mark(NamedTuple):
    """A place between two units. Marks are in the order of the log."""

    input: int
    at: int  # bytes into the unpacked input, rows of Parquet; where units are sessions or ids, the number of the unit
    line: int = 1  # formats with one conversation a line: the line there, from 1


END = 1 << 62  # `at` behind all units of an input


@dataclass
class Surveyed:
    """What the first pass knows of one input."""

    input: Input
    number: int
    stat: tuple[int, ...]
    format: str | None = None  # None: empty, or set aside, and then without units
    digest: str = ""
    problem: Unreadable | None = None  # why it was set aside; with a format: why its last unit is no line
    own: Reader | None = None  # the reader, where it is none of READERS
    parquet: bool = False
    plain: Path | None = None  # where it lies unpacked, if it had to be
    spooled: bool = False  # whether that was written by opdkit.extract.inputs.spool
    size: int = 0  # bytes of the unpacked input that hold whole lines; rows of Parquet
    chunks: list[tuple[Mark, int]] = field(default_factory=list)  # one conversation a line: where to cut, bytes to next
    units: range = range(0)  # sessions and ids: the units that come up first in this input

    def pinned(self) -> JSON:
        """What the plan says about it."""
        return {"position": self.number, "source": self.input.source, "bytes": self.stat[0], "xxh3_128": self.digest,
                "format": self.format}  # fmt: skip

    def known(self) -> JSON:
        """What other shards need not find out again of an input that is set aside or has a unit a line."""
        problem = self.problem and [self.problem.reason, self.problem.detail]
        return {"format": self.format, "digest": self.digest, "problem": problem, "size": self.size,
                "chunks": [[mark.at, mark.line, size] for mark, size in self.chunks]}  # fmt: skip

    def recall(self, known: JSON) -> None:
        """Take over what `known` has said of the same file."""
        self.format, self.digest, self.size = known["format"], known["digest"], known["size"]
        self.problem = Unreadable(*known["problem"]) if known["problem"] else None
        self.chunks = [(Mark(self.number, at, line), size) for at, line, size in known["chunks"]]

    @property
    def set_aside(self) -> bool:
        return self.format is None and self.problem is not None

    @property
    def path(self) -> Path:
        """Where to read it from."""
        return self.plain or self.input.path

    @property
    def reader(self) -> Reader:
        return self.own or READERS[self.format or ""]

    @property
    def by_row(self) -> bool:
        """Whether it is read as Parquet, and places in it are rows."""
        return self.parquet and self.plain is None

    @property
    def by_line(self) -> bool:
        return self.format is not None and self.reader.grouping == "line"


def stat_of(path: Path) -> tuple[int, ...]:
    """What changes when a file does: size, time of change, inode."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def check_unchanged(found: Surveyed) -> None:
    """Raise OpdkitError when the file is not the one that the first pass has seen."""
    now = stat_of(found.input.path)
    if now != found.stat:
        raise OpdkitError(
            f"{found.input.source} changed while it was read ({found.stat[0]:,} bytes before, {now[0]:,} now). "
            "Copy the log to where nothing writes to it, and extract the copy."
        )
