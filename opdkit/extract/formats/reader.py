"""Types that all log formats share: the reader of a format, the lines of a log, and records that are not kept."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from opdkit.chat.conversation import JSON, Conversation, Unreadable

RAW_LIMIT = 2_000  # characters of a rejected line that are kept


@dataclass(slots=True)
class Rejected:
    """Rejected line, or a whole rejected input (`line` is 0)."""

    source: str
    line: int
    reason: str
    detail: str
    raw: bytes = b""

    def row(self, redact: Callable[[str], str] = str) -> JSON:
        """Return the row of tables.REJECTED, with its texts passed through `redact`."""
        # Decode only the beginning, not a line of 100 MB. A character has at most four bytes. Twice as many are decoded
        # as needed, so that a secret at the limit is redacted before it is cut.
        text = redact(self.raw[: 8 * RAW_LIMIT].decode("utf-8", "replace").rstrip("\r\n"))[:RAW_LIMIT]
        detail = redact(self.detail.encode("utf-8", "replace").decode())[:RAW_LIMIT]
        return {"source": self.source, "line": self.line, "reason": self.reason, "detail": detail, "raw": text}


class Line(NamedTuple):
    """Line of an input. If it could not be read, `problem` says why and `data` is only its beginning."""

    source: str
    number: int  # from 1
    data: bytes
    problem: Unreadable | None = None

    def reject(self, problem: Unreadable) -> Rejected:
        """Return this line as a row of the rejected table."""
        return Rejected(self.source, self.number, problem.reason, problem.detail, self.data)


@dataclass(slots=True)
class LeftOut:
    """Record that was read but belongs to no conversation: it is counted under its reason, and not kept."""

    reason: str  # begins with conversation.LEFT_OUT


@dataclass(frozen=True)
class Reader:
    """Reader of a log format. sessions.line_reader and chains.call_reader make the two most frequent kinds.

    `grouping` names the unit of the log: a non-blank `line`, a `session` header with all lines up to the next header,
    or all lines with the same logged `id`, wherever they are. `read` turns the lines of one unit into conversations
    and rejects what it cannot read; it never raises on bad input.
    """

    name: str
    grouping: str
    recognises: Callable[[JSON], bool]
    read: Callable[[Sequence[Line]], Iterator[Conversation | Rejected | LeftOut]]
    # Returns the logged id of a record, or None. Grouping by session: the id of a header; None for any other line.
    id_of: Callable[[JSON], str | None] | None = None  # None: grouping by line
    # Grouping by id: a line without an id belongs to the unit of the line before it, and is not a unit of its own.
    carries: bool = False
    # Grouping by id: returns the records of a line that holds several, possibly of different sessions.
    unfold: Callable[[JSON], list[JSON]] | None = None
    header_mark: bytes = b""  # grouping by session: every header contains it; lines without it are not parsed for an id
    # Grouping by session: a header right after a header, or with the id of the session so far, begins no session.
    repeats_headers: bool = False
    # Formats that recognise these records, too, but fit them less closely: detection prefers this one.
    closer_than: tuple[str, ...] = ()

    def begins_session(self, header: str | None, before: str | None, own: str | None) -> bool:
        """Return True if a line with id `header` begins a session. None means no id.

        `before` is the id of the line before, `own` that of the session of this line.
        """
        return header is not None and not (self.repeats_headers and (before is not None or header == own))
