"""Session event files of the pi coding agent, which OpenClaw writes too: one event a line, one session a file.

The messages of a session are what the agent sends to its model: user, assistant and tool messages, shell commands the
user ran and messages of extensions as user messages. From version 2 on the events form a tree by `id` and `parentId`;
the active branch is the way from the last event up to the root, and the other branches are left out. A compaction
replaces the beginning of the prompt by a summary; the table keeps the whole conversation, and the metadata says before
which messages the prompt was compacted. Token usage, signatures and the private details of tools are left out.
"""

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import flatten, message, read_call
from opdkit.extract.formats.gaps import mark_gaps
from opdkit.extract.formats.json_lines import COMMENT, parse
from opdkit.extract.formats.reader import Line, Reader, Rejected, rejected

_HEADER_ONLY = frozenset(("type", "modelId"))
_STOPPED = {"aborted": "aborted", "error": "error"}


def recognises(record: JSON) -> bool:
    """A session header, or a message event."""
    kind, body = record.get("type"), record.get("message")
    if kind == "session":
        return "id" in record and "timestamp" in record
    return kind == "message" and isinstance(body, dict) and "role" in body


_Told = tuple[JSON, Note | None, bool]  # a message, what is noted about a reply, whether a tool failed


@dataclass(slots=True)
class _Event:
    """One line: where it stands in the tree, and what it adds to the conversation."""

    kind: str
    id: str | None
    parent: str | None
    told: _Told | None
    model: str | None
    logged: JSON  # a header's other fields


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """All lines of one session -> one conversation."""
    events: list[_Event] = []
    gaps: set[int] = set()  # positions in `events` right before which a line could not be read
    first: Line | None = None  # that could be read: the session's own place among what is set aside
    for line in unit:
        try:
            events.append(_event(parse(line)))
            first = first or line
        except Unreadable as why:
            yield rejected(line, why)
            if why.reason != COMMENT:
                gaps.add(len(events))
    branch = _active_branch(events, gaps)
    conversation = _conversation(unit[0], [events[i] for i in branch], _on_branch(branch, gaps))
    if conversation.messages:
        yield conversation
    elif first is not None:
        yield rejected(first, Unreadable("no messages", "a session without one message"))


def _active_branch(events: Sequence[_Event], gaps: set[int]) -> list[int]:
    """Positions in `events` of what is told: all of them, or from the last one up the parents."""
    by_id = {event.id: i for i, event in enumerate(events) if event.id is not None}
    if not by_id:
        return list(range(len(events)))
    branch: list[int] = []
    seen: set[int] = set()
    position: int | None = max(by_id.values())
    while position is not None and position not in seen:  # a damaged log may run in a circle
        seen.add(position)
        branch.append(position)
        parent = events[position].parent
        before = by_id.get(parent) if parent is not None else None
        if parent is not None and before is None:
            # Where lines could not be read, the parent was one of them: go on with the event before it.
            before = position - 1 if gaps and position else None
            gaps.add(position)
        position = before
    return branch[::-1]


def _on_branch(branch: Sequence[int], gaps: set[int]) -> set[int]:
    """The gaps as positions in the branch: each lies before the first event that comes after it."""
    return {bisect.bisect_left(branch, gap) for gap in gaps}


def _conversation(first: Line, events: Sequence[_Event], gaps: set[int]) -> Conversation:
    header = next((e for e in events if e.kind == "session"), None)
    told = Conversation(first.source, first.number, [])
    compacted: list[int] = []
    tool_errors: list[int] = []
    gaps_at: set[int] = set()  # indices of messages
    for position, event in enumerate(events):
        if position in gaps:
            gaps_at.add(len(told.messages))
        if event.kind == "compaction":
            compacted.append(len(told.messages))
        told.model = told.model or event.model
        if event.told is None:
            continue
        body, note, failed = event.told
        if note is not None:
            told.notes[len(told.messages)] = note
        if failed:
            tool_errors.append(len(told.messages))
        told.messages.append(body)
    if len(events) in gaps:
        gaps_at.add(len(told.messages))
    mark_gaps(told, gaps_at)
    found = {"compacted_before": compacted, "tool_errors": tool_errors}
    told.metadata = (header.logged if header else {}) | {k: v for k, v in found.items() if v}
    return told


def _text(item: JSON, key: str) -> str | None:
    value = item.get(key)
    return value if isinstance(value, str) and value else None


# -- one event -------------------------------------------------------------------------------------------------------


def _event(record: JSON) -> _Event:
    kind = _text(record, "type")
    if kind is None:
        raise Unreadable("event without a type")
    event = _Event(kind, None, _text(record, "parentId"), None, None, {})
    if "parentId" in record:
        event.id = _text(record, "id")
    if kind == "message":
        body = record.get("message")
        if not isinstance(body, dict):
            raise Unreadable("message is no object", f"it is a {type(body).__name__}")
        role = _text(body, "role")
        if role not in _ROLES:
            raise Unreadable("unknown role", f"role {str(body.get('role'))[:100]!r}")
        event.told, event.model = _ROLES[role](body), _text(body, "model")
    elif kind == "custom_message":
        event.told = _custom(record)
    elif kind == "branch_summary" and _text(record, "summary"):
        event.told = _summary(record)
    elif kind == "session":
        event.model = _text(record, "modelId")
        event.logged = {k: v for k, v in record.items() if k not in _HEADER_ONLY}
    return event  # model and thinking changes, compactions, labels, private notes of extensions add no message


def _user(body: JSON) -> _Told:
    return message("user", _content(body)), None, False


def _assistant(body: JSON) -> _Told:
    content = body.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    kinds = [b.get("type") if isinstance(b, dict) else None for b in blocks]
    thoughts = [b["thinking"] for b, k in zip(blocks, kinds, strict=True)
                if k == "thinking" and isinstance(b.get("thinking"), str)]  # fmt: skip
    calls = [read_call(b) for b, k in zip(blocks, kinds, strict=True) if k == "toolCall"]
    rest = [b for b, k in zip(blocks, kinds, strict=True) if k not in ("thinking", "toolCall")]
    reason = _text(body, "stopReason")
    reply = message("assistant", flatten(rest) if rest else None, reasoning="\n".join(thoughts) or None,
                    tool_calls=calls)  # fmt: skip
    return reply, Note(finish_reason=reason, skip_reason=_STOPPED.get(reason or "")), False


def _tool_result(body: JSON) -> _Told:
    told = message("tool", _content(body), name=_text(body, "toolName"), tool_call_id=_text(body, "toolCallId"))
    return told, None, body.get("isError") is True


def _shell(body: JSON) -> _Told | None:
    """A command the user ran, in the words in which the agent shows it to the model."""
    if body.get("excludeFromContext"):
        return None
    output, code = _text(body, "output"), body.get("exitCode")
    text = f"Ran `{body.get('command')}`\n" + (f"```\n{output}\n```" if output else "(no output)")
    if body.get("cancelled"):
        text += "\n\n(command cancelled)"
    elif isinstance(code, int) and code != 0:
        text += f"\n\nCommand exited with code {code}"
    return message("user", text, name="bash"), None, False


def _custom(body: JSON) -> _Told:
    return message("user", _content(body), name=_text(body, "customType") or "custom"), None, False


def _summary(body: JSON) -> _Told:
    return message("user", _text(body, "summary"), name="summary"), None, False


def _content(body: JSON) -> str | None:
    content: Any = body.get("content")
    if content is None:
        return None
    return content if isinstance(content, str) else flatten(content)


_ROLES: dict[str | None, Callable[[JSON], _Told | None]] = {
    "user": _user,
    "assistant": _assistant,
    "toolResult": _tool_result,
    "bashExecution": _shell,
    "custom": _custom,
    "hookMessage": _custom,
    "branchSummary": _summary,
    "compactionSummary": _summary,
}

READER = Reader("pi", "session", recognises, read)
