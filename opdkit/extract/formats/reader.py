"""Log formats: the lines of a log, the reader of a format, and the records that are set aside."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from opdkit.chat.conversation import JSON, Conversation, Unreadable

RAW_LIMIT = 2_000  # characters of a rejected line that are kept


@dataclass(slots=True)
class Rejected:
    """Line, or with line 0 a whole input, that was set aside."""

    source: str
    line: int
    reason: str
    detail: str
    raw: bytes = b""

    def row(self, redact: Callable[[str], str] = str) -> JSON:
        """Return the row of tables.REJECTED, its texts as `redact` leaves them."""
        # A character is at most four bytes: no need to decode a line of 100 MB to show its beginning. Twice as much, so
        # that what is redacted is not first cut in two.
        text = redact(self.raw[: 8 * RAW_LIMIT].decode("utf-8", "replace").rstrip("\r\n"))[:RAW_LIMIT]
        detail = redact(self.detail.encode("utf-8", "replace").decode())[:RAW_LIMIT]
        return {"source": self.source, "line": self.line, "reason": self.reason, "detail": detail, "raw": text}


class Line(NamedTuple):
    """Line of an input. Where it could not be read as a line, `problem` says why and `data` is its beginning."""

    source: str
    number: int  # from 1
    data: bytes
    problem: Unreadable | None = None

    def reject(self, problem: Unreadable) -> Rejected:
        """Return this line as a row of the rejected table."""
        return Rejected(self.source, self.number, problem.reason, problem.detail, self.data)


@dataclass(slots=True)
class LeftOut:
    """Record that was read and is not part of a conversation: counted under its reason, not kept."""

    reason: str  # begins with LEFT_OUT


@dataclass(frozen=True)
class Reader:
    """Log format. sessions.line_reader and chains.call_reader make the two most frequent kinds.

    `grouping` names the unit of the log: a non-blank `line`, a `session` header with all lines up to the next one, or
    all lines with one logged `id`, wherever they are. `read` turns the lines of one unit into conversations, and sets
    aside what it cannot read; it never raises on bad input.
    """

    name: str
    grouping: str
    recognises: Callable[[JSON], bool]
    read: Callable[[Sequence[Line]], Iterator[Conversation | Rejected | LeftOut]]
    # Returns the logged id of a record, None where it has none. Grouping by session: of a header, None for other lines.
    id_of: Callable[[JSON], str | None] | None = None  # None: grouping by line
    # Grouping by id: a line without an id belongs to the session of the line before it, and is not a unit of its own.
    carries: bool = False
    # Grouping by id: returns the records of a line that holds many, which may be of many sessions.
    unfold: Callable[[JSON], list[JSON]] | None = None
    header_mark: bytes = b""  # grouping by session: in every header, so that not all lines have to be parsed twice
    repeats_headers: bool = False  # grouping by session: a header right behind another one is part of the same session
    # Formats that also recognise these records, and describe them less closely.
    closer_than: tuple[str, ...] = ()

    def begins_session(self, header: str | None, before: str | None) -> bool:
        """Return True if the id on a line begins a session, given that on the line before; None: it has none."""
        return header is not None and (before is None or not self.repeats_headers)
