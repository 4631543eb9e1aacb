"""Readers of formats with one session per line, replies logged in pieces, and sessions with unreadable lines."""

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import read_messages
from opdkit.extract.formats.json_lines import parse
from opdkit.extract.formats.reader import Line, Reader, Rejected

GAP = "unreadable line beside it"


def line_reader(
    name: str,
    recognises: Callable[[JSON], bool],
    read_record: Callable[[Line, JSON], Iterable[Conversation | Rejected]],
    closer_than: tuple[str, ...] = (),
) -> Reader:
    """Return the reader of a format with one session per line. Only the unreadable lines are rejected.

    `read_record(line, record)` returns the conversations of a record, usually one. It may raise Unreadable.
    """
    return Reader(name, "line", recognises, partial(_read_lines, read_record), closer_than=closer_than)


def _read_lines(
    read_record: Callable[[Line, JSON], Iterable[Conversation | Rejected]], unit: Sequence[Line]
) -> Iterator[Conversation | Rejected]:
    for line in unit:
        try:
            yield from read_record(line, parse(line))
        except Unreadable as problem:
            yield line.reject(problem)


def join_reply(reply: JSON, note: Note, piece: JSON, piece_note: Note) -> None:
    """Add the next piece of a reply that is logged in pieces to the reply's message and note."""
    for key in ("content", "reasoning"):
        if piece[key]:
            reply[key] = piece[key] if reply[key] is None else f"{reply[key]}\n{piece[key]}"
    reply["tool_calls"] = [*reply["tool_calls"], *piece["tool_calls"]]
    note.finish_reason = piece_note.finish_reason or note.finish_reason
    note.skip_reason = piece_note.skip_reason or note.skip_reason


def read_pieces(items: Sequence[Any], *, only_calls: bool = False) -> tuple[list[JSON], dict[int, Note]]:
    """Read logged messages as read_messages does, and join consecutive assistant messages.

    OpenAI's Responses API logs the thinking, texts and calls of one reply as separate items. With `only_calls`, only a
    message of nothing but calls is joined to the one before: several texts may be choices. Raises Unreadable.
    """
    messages: list[JSON] = []
    notes: dict[int, Note] = {}
    read, read_notes = read_messages(items)
    for index, message in enumerate(read):
        if message["role"] == "assistant":
            note, last = read_notes.get(index, Note()), len(messages) - 1
            is_piece = not only_calls or (message["tool_calls"] and not message["content"] and not message["reasoning"])
            if last in notes and is_piece:
                join_reply(messages[last], notes[last], message, note)
                continue
            notes[last + 1] = note
        messages.append(message)
    return messages, notes


def split_blocks(blocks: Iterable[Any]) -> list[JSON]:
    """Split a reply's blocks into logged messages: one per tool result, one for all blocks between two results.

    A block `steer` (LibreChat) is a message that the user sent while the reply was written.
    """
    messages: list[JSON] = []
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == "tool_result":
            messages.append({"role": "tool", "content": block.get("content"), "tool_call_id": block.get("tool_use_id")})
        elif isinstance(block, dict) and block.get("type") == "steer":
            messages.append({"role": "user", "content": block.get("steer")})
        elif messages and messages[-1]["role"] == "assistant":
            messages[-1]["content"].append(block)
        else:
            messages.append({"role": "assistant", "content": [block]})
    return messages


def mark_gaps(conversation: Conversation, gaps: set[int]) -> None:
    """Mark the replies on both sides of every gap as not trainable. A gap is the index of the message after it.

    The reply before an unreadable line lacks part of its next state; the reply after it lacks part of its prompt.
    """
    replies = [i for i, message in enumerate(conversation.messages) if message["role"] == "assistant"]
    for gap in gaps:
        after = bisect.bisect_left(replies, gap)
        for index in replies[max(0, after - 1) : after + 1]:
            note = conversation.notes.setdefault(index, Note())
            note.skip_reason = note.skip_reason or GAP
