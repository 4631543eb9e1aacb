"""Rows of the units of a part: the sessions and turns of its conversations, and what could not be read."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from opdkit.chat.conversation import JSON, Conversation, Unreadable
from opdkit.chat.messages import dump
from opdkit.config.conditions import Filter, find_rejection
from opdkit.extract.formats.reader import LeftOut, Line, Rejected
from opdkit.extract.inputs.second_pass import Unit
from opdkit.extract.known_turns import skip_known
from opdkit.extract.redact import Redactor, redact_session
from opdkit.extract.turns import turns
from opdkit.store.counters import TRAINABLE_COUNT, TURN_COUNT
from opdkit.store.part_writer import PartWriter
from opdkit.store.skip_reasons import DUPLICATE
from opdkit.store.turn_ids import branch_session_id

UNREAD, SKIPPED = "log sessions unread", "skipped"  # counters


@dataclass(frozen=True)
class RowOptions:
    """Options that decide the rows of a unit, besides its lines."""

    redactor: Redactor | None  # None: nothing is redacted
    filters: Sequence[Filter]
    side: bool  # see `turns`
    known_turns: sqlite3.Connection | None = None  # the turns in it are not trainable


def write_unit(unit: Unit, out: PartWriter, options: RowOptions) -> None:
    """Write the rows of one unit: the sessions that pass the filters, their turns, and what could not be read."""
    counters = out.counters
    counters.rows_in += 1
    if unit.problem is not None:
        _write_rejected(Line(unit.surveyed.input.source, 0, b"").reject(unit.problem), out, options)
        return
    writer = _UnitWriter(unit, out, options)
    is_read = False
    for item in unit.surveyed.reader.read(unit.lines):
        # Count sessions that a filter drops, too: filters must not change the ids of the others.
        writer.ordinal += isinstance(item, Conversation) and item.branch < 2
        if isinstance(item, Rejected):
            _write_rejected(item, out, options)
        elif isinstance(item, LeftOut):
            counters.drop(item.reason)
            is_read = True
        elif (reason := find_rejection(options.filters, item, unit.surveyed.format or "")) is not None:
            counters.drop(reason)
            is_read = True
        else:
            try:
                writer.write(item)
                is_read = True
            except Unreadable as why:
                _write_rejected(Line(item.source, item.line, b"").reject(why), out, options)
    if not is_read:
        counters.count(UNREAD)


def _write_rejected(item: Rejected, out: PartWriter, options: RowOptions) -> None:
    """Write one row of the rejected table, and count it as dropped."""
    out.add_rows("rejected", [item.row(str if options.redactor is None else options.redactor.raw)])
    out.counters.drop(item.reason)


@dataclass
class _UnitWriter:
    """Writer of the conversations of one unit. The rows of each depend on the conversations before it."""

    unit: Unit
    out: PartWriter
    options: RowOptions
    ordinal: int = 0  # number of the conversation, from 1; the branches of a tree count as one
    written: set[str | None] = field(default_factory=set)  # ids of replies in earlier branches: not trainable again
    seen: Counter[bytes] = field(default_factory=Counter)  # trainable turns by digest: see `skip_known`

    def write(self, item: Conversation) -> None:
        """Write the rows of a conversation, and count them. Raises Unreadable before it writes any row."""
        replies = {note.message_id for note in item.notes.values()} - {None}
        for index, note in item.notes.items():
            note.drop_unchanged(item.messages[index]["content"])
            if note.message_id in self.written:
                note.skip_reason, note.decision = DUPLICATE, None
        session = self.session_row(item)
        # Made from the text as it was logged: two texts that differ may be equal once they are redacted.
        rows = turns(session["session_id"], item, side=self.options.side)
        if self.options.redactor is not None:
            rows = redact_session(session, rows, self.options.redactor)
        if self.options.known_turns is not None:
            rows = skip_known(session, rows, self.options.known_turns, self.seen)
        self.written |= replies
        self.out.add_rows("sessions", [session])
        self.out.add_rows("turns", rows)
        counters = self.out.counters
        counters.count(TURN_COUNT, len(rows))
        for decision in filter(None, (row.decision for row in rows)):
            if decision["rating"] is not None:
                counters.count("decisions", label=f"rated {decision['rating']:+d}")
            for key, label in (("comment", "commented"), ("edited", "edited"), ("kept", "regenerated")):
                if decision[key]:
                    counters.count("decisions", label=label)
        for skipped, count in Counter(row.skip_reason for row in rows).items():
            counters.count(TRAINABLE_COUNT if skipped is None else SKIPPED, count, label=skipped or "")

    def session_row(self, conversation: Conversation) -> JSON:
        """Return the row of tables.SESSIONS, with id and metadata redacted.

        Raises Unreadable for metadata that cannot be written as JSON.
        """
        unit, redactor = self.unit, self.options.redactor
        name = str(conversation.line) if unit.name is None else unit.name
        metadata: JSON = conversation.metadata
        if redactor is not None:
            metadata = redactor.value(metadata)
            if unit.name is not None and (redacted := redactor.text(name)) != name:
                # The ids of two users may get the same placeholder. The unit's number is unique, a line's may not be.
                known = self.options.known_turns
                night = known.execute("SELECT number FROM night").fetchone() if known else ()
                name = f"{redacted}~{'.'.join(map(str, (*night, unit.number)))}"
        first = f"{unit.surveyed.input.name}:{name}" + (f"#{self.ordinal}" if self.ordinal > 1 else "")
        return {
            "session_id": branch_session_id(first, conversation.branch),
            "source": conversation.source,
            "line": conversation.line,
            "format": unit.surveyed.format,
            "model": conversation.model,
            "messages": conversation.messages,
            "tools": conversation.tools,
            "metadata": dump(metadata) if metadata else None,
            "tree": first if conversation.branch else None,
        }
