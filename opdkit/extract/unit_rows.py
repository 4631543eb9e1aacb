"""Rows of the units of a part: the sessions and turns of its conversations, and what could not be read."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

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
    """All that the rows of a unit depend on, beside its lines."""

    redactor: Redactor | None  # None: nothing is redacted
    filters: Sequence[Filter]
    side: bool  # see `turns`
    known_turns: sqlite3.Connection | None = None  # these are not trainable


def write_unit(unit: Unit, out: PartWriter, options: RowOptions) -> None:
    """Write the rows of one unit that the filters let pass."""
    counters = out.counters
    counters.rows_in += 1
    if unit.problem is not None:
        write_rejected(Line(unit.surveyed.input.source, 0, b"").reject(unit.problem), out, options.redactor)
        return
    ordinal = sessions = left_out = 0
    written: set[str | None] = set()  # replies of a tree that an earlier branch holds
    seen: Counter[bytes] = Counter()  # trainable turns, where some are known
    for item in unit.surveyed.reader.read(unit.lines):
        # A filter decides which sessions are kept, not their ids.
        ordinal += isinstance(item, Conversation) and item.branch < 2
        if isinstance(item, Rejected):
            write_rejected(item, out, options.redactor)
        elif isinstance(item, LeftOut):
            counters.drop(item.reason)
            left_out += 1
        elif (reason := find_rejection(options.filters, item, unit.surveyed.format or "")) is not None:
            counters.drop(reason)
            left_out += 1
        else:
            try:
                write_conversation(item, unit, ordinal, out, options, written, seen)
            except Unreadable as why:
                write_rejected(Line(item.source, item.line, b"").reject(why), out, options.redactor)
            else:
                sessions += 1
    if not sessions and not left_out:
        counters.count(UNREAD)


def write_conversation(
    item: Conversation,
    unit: Unit,
    ordinal: int,
    out: PartWriter,
    options: RowOptions,
    written: set[str | None],
    seen: Counter[bytes],
) -> None:
    """Write the rows of one conversation of a unit, and count them. Raises Unreadable before any is written.

    Replies in `written` are not trainable again; its own are added. `seen`: see `skip_known`.
    """
    replies = {note.message_id for note in item.notes.values()} - {None}
    for index, note in item.notes.items():
        note.drop_unchanged(item.messages[index]["content"])
        if note.message_id in written:
            note.skip_reason, note.decision = DUPLICATE, None
    row = session_row(item, unit, ordinal, options.redactor)
    # Of the text as it was logged: placeholders are all alike.
    rows = turns(row["session_id"], item, side=options.side)
    if options.redactor is not None:
        rows = redact_session(row, rows, options.redactor)
    if options.known_turns is not None:
        rows = skip_known(row, rows, options.known_turns, seen)
    written |= replies
    out.rows("sessions", [row])
    out.rows("turns", rows)
    out.counters.count(TURN_COUNT, len(rows))
    for decision in filter(None, (note.decision for note in item.notes.values())):
        rating = f"rated {decision['rating']:+d}" if decision["rating"] is not None else None
        kinds = {rating: True, "commented": decision["comment"], "edited": decision["edited"],
                 "regenerated": decision["kept"]}  # fmt: skip
        for kind in (kind for kind, is_there in kinds.items() if kind and is_there):
            out.counters.count("decisions", label=kind)
    for skipped, count in Counter(row.skip_reason for row in rows).items():
        out.counters.count(TRAINABLE_COUNT if skipped is None else SKIPPED, count, label=skipped or "")


def write_rejected(item: Rejected, out: PartWriter, redactor: Redactor | None) -> None:
    """Write one row of the rejected table, and count it as dropped."""
    out.rows("rejected", [item.row(redactor.raw if redactor is not None else str)])
    out.counters.drop(item.reason)


def session_row(conversation: Conversation, unit: Unit, ordinal: int, redactor: Redactor | None) -> JSON:
    """Return the row of tables.SESSIONS for the `ordinal`-th conversation, from 1, of a unit; id and metadata redacted.

    The branches of a tree count as one conversation. Raises Unreadable for metadata that cannot be written as JSON.
    """
    name = str(conversation.line) if unit.name is None else unit.name
    metadata: JSON = conversation.metadata
    if redactor is not None:
        metadata = redactor.value(metadata)
        if unit.name is not None and (redacted := redactor.text(name)) != name:
            # The ids of two users become one placeholder: the number tells them apart. A line may hold several units.
            name = f"{redacted}~{unit.number}"
    first = f"{unit.surveyed.input.name}:{name}" + (f"#{ordinal}" if ordinal > 1 else "")
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
