"""Session event files of the pi coding agent, of OpenClaw, and of Factory's Droid: one event per line.

The messages of a session are what the agent sends to its model: user, assistant and tool messages. Shell commands that
the user ran and messages of extensions are user messages. From version 2 on, the events form a tree by `id` and
`parentId`. Only the active branch is read, the path from the last event up to the root. A compaction replaces the
beginning of the prompt with a summary; the table keeps the whole conversation, and the metadata says before which
messages the prompt was compacted. Replies that failed or were aborted are counted there: the agent sends none of them
to its model again. Token usage, signatures and the private details of tools are left out.

Droid's events differ in their header (`session_start`) and hold Anthropic's content blocks: results are blocks of user
messages. An event of Droid without `parentId` follows the one before it.
"""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import (
    NOT_ONLY_TEXT,
    first_text,
    has_placeholder,
    join_content,
    message,
    read_call,
    read_messages,
)
from opdkit.extract.formats.claude_code import mark_reactions
from opdkit.extract.formats.json_lines import COMMENT, parse
from opdkit.extract.formats.reader import Line, Reader, Rejected
from opdkit.extract.formats.sessions import mark_gaps

_HEADERS = ("session", "session_start")
_HEADER_ONLY = frozenset(("type", "modelId"))
_FAILED = ("aborted", "error")  # stop reasons
_SUMMARIES = ("branchSummary", "compactionSummary")
_EXTENSIONS = ("custom", "hookMessage")
_PROGRAMS = ("inter_session", "internal_system")  # OpenClaw's provenance: who wrote a user message, if no person
_OF_OPENCLAW = ("delivery-mirror", "gateway-injected")  # OpenClaw's own lines, which its models do not read
_ROLES = ("user", "assistant", "toolResult", "bashExecution", *_SUMMARIES, *_EXTENSIONS)


def recognises(record: JSON) -> bool:
    """Return whether the record is a session header, or a message event."""
    kind, body = record.get("type"), record.get("message")
    if kind == "session_start":
        return "id" in record and "cwd" in record
    if kind == "session":
        return "id" in record and "timestamp" in record
    return kind == "message" and isinstance(body, dict) and "role" in body


@dataclass(slots=True)
class _Event:
    """Line of a session: its place in the tree, and what it adds to the conversation."""

    kind: str
    id: str | None
    parent: str | None
    in_tree: bool = False  # it names its parent, if only as null
    messages: list[JSON] = field(default_factory=list)  # one, but for several results
    note: Note | None = None  # replies only
    machine: bool = False  # no person wrote the user's message
    tool_failed: bool = False
    failed: bool = False  # a reply
    model: str | None = None
    header: JSON = field(default_factory=dict)  # the other fields of a session header
    time: str | None = None


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """Read all lines of one session as one conversation."""
    events: list[_Event] = []
    gaps: set[int] = set()  # positions in `events`: an unreadable line came right before
    first: Line | None = None  # first readable line; a rejected session is reported under it
    for line in unit:
        try:
            events.append(_read_event(parse(line)))
            first = first or line
        except Unreadable as problem:
            yield line.reject(problem)
            if problem.reason != COMMENT:
                gaps.add(len(events))
    branch, gaps = _find_active_branch(events, gaps)
    conversation = Conversation(unit[0].source, unit[0].number, [])
    messages = conversation.messages
    compacted: list[int] = []
    tool_errors: list[int] = []
    failed_replies = 0
    message_gaps: set[int] = set()
    for position, event in enumerate(events[i] for i in branch):
        if position in gaps:
            message_gaps.add(len(messages))
        if event.kind == "compaction":
            compacted.append(len(messages))
        conversation.model = conversation.model or event.model
        if event.note is not None:
            conversation.notes[len(messages)] = event.note
        failed_replies += event.failed
        if event.tool_failed:
            tool_errors.append(len(messages))
        if event.machine:
            conversation.machine |= {len(messages) + i for i, m in enumerate(event.messages) if m["role"] == "user"}
        messages += event.messages
    if len(branch) in gaps:
        message_gaps.add(len(messages))
    mark_gaps(conversation, message_gaps)
    mark_reactions(conversation, conversation.machine)
    conversation.metadata = next((event.header for event in events if event.kind in _HEADERS), {})  # not in the tree
    if time := next((event.time for event in events if event.time), None):  # Droid's header has none
        conversation.metadata.setdefault("timestamp", time)
    left_out = sum(event.note is not None for event in events) - len(conversation.notes)
    logged = {"compacted_before": compacted, "tool_errors": tool_errors, "failed_replies": failed_replies,
              "other_branches": left_out}  # fmt: skip
    conversation.metadata |= {key: value for key, value in logged.items() if value}
    if messages:
        yield conversation
    elif first is not None:
        yield first.reject(Unreadable("no messages", "a session without messages"))


def _find_active_branch(events: Sequence[_Event], gaps: set[int]) -> tuple[list[int], set[int]]:
    """Return (positions of the events on the active branch, gaps as positions in that list).

    Without a tree, that is all events. If lines could not be read, a missing parent was probably one of them: the event
    before takes its place.
    """
    if not any(event.in_tree and event.id is not None for event in events):
        return list(range(len(events))), gaps
    by_id = {event.id: i for i, event in enumerate(events) if event.id is not None}
    last: str | None = None
    for event in events:
        if event.id is not None:
            event.parent = event.parent if event.in_tree else last
            last = event.id
    branch: list[int] = []
    breaks = set(gaps)
    seen: set[int] = set()
    position: int | None = max(by_id.values())
    while position is not None and position not in seen:  # a damaged log may have a cycle
        seen.add(position)
        branch.append(position)
        parent = events[position].parent
        before = by_id.get(parent) if parent is not None else None
        if parent is not None and before is None:
            before = position - 1 if gaps and position else None
            breaks.add(position)
        position = before
    branch.reverse()
    return branch, {bisect.bisect_left(branch, gap) for gap in breaks}


def _read_event(record: JSON) -> _Event:
    kind = first_text(record.get("type"))
    if kind is None:
        raise Unreadable("event without a type")
    in_tree = "parentId" in record
    event = _Event(kind, first_text(record.get("id")) if in_tree or kind == "message" else None,
                   first_text(record.get("parentId")), in_tree, time=first_text(record.get("timestamp")))  # fmt: skip
    if kind == "message":
        body = record.get("message")
        if not isinstance(body, dict):
            raise Unreadable("message is not an object", f"it is a {type(body).__name__}")
        role = first_text(body.get("role"))
        if role not in _ROLES:
            raise Unreadable("unknown role", f"role {str(body.get('role'))[:100]!r}")
        model = first_text(body.get("model"))
        if role == "assistant" and body.get("stopReason") in _FAILED:
            event.failed = True
        elif body.get("provider") != "openclaw" or model not in _OF_OPENCLAW:
            event.model = model or first_text(body.get("modelId"))
            _add_message(event, role, body)
            event.machine = event.machine or "llm_only" in (record.get("visibility"), body.get("visibility"))
    elif kind == "custom_message":
        _add_message(event, "custom", record)
    elif kind == "branch_summary" and first_text(record.get("summary")):
        _add_message(event, "branchSummary", record)
    elif kind in _HEADERS:
        event.model = first_text(record.get("modelId"))
        event.header = {k: v for k, v in record.items() if k not in _HEADER_ONLY}
    return event  # without a message: model and thinking changes, compactions, labels, notes of extensions


def _add_message(event: _Event, role: str, body: JSON) -> None:
    """Set the message of an event, worded as the agent sends it to its model."""
    content = body.get("content")
    if role == "assistant":
        thoughts, calls, rest = list[str](), list[JSON](), list[Any]()
        for block in content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []:
            kind = block.get("type") if isinstance(block, dict) else None
            if kind in ("toolCall", "tool_use"):
                calls.append(read_call(block))
            elif kind not in ("thinking", "redacted_thinking"):
                rest.append(block)
            elif isinstance(block.get("thinking"), str) and not block.get("redacted"):  # else it is the client's notice
                thoughts.append(block["thinking"])
        text = join_content(rest) if rest else None
        event.messages = [message("assistant", text, reasoning="\n".join(thoughts) or None, tool_calls=calls)]
        skip = NOT_ONLY_TEXT if has_placeholder(rest) else None
        event.note = Note(finish_reason=first_text(body.get("stopReason")), skip_reason=skip)
    elif role == "toolResult":
        name, call = first_text(body.get("toolName")), first_text(body.get("toolCallId"))
        event.messages = [message("tool", join_content(content), name=name, tool_call_id=call)]
        event.tool_failed = body.get("isError") is True
    elif role == "bashExecution":
        if body.get("excludeFromContext"):
            return
        output, code = first_text(body.get("output")), body.get("exitCode")
        text = f"Ran `{body.get('command')}`\n" + (f"```\n{output}\n```" if output else "(no output)")
        if body.get("cancelled"):
            text += "\n\n(command cancelled)"
        elif isinstance(code, int) and code != 0:
            text += f"\n\nCommand exited with code {code}"
        event.messages, event.machine = [message("user", text, name="bash")], True
    elif role in _SUMMARIES:
        event.messages, event.machine = [message("user", first_text(body.get("summary")), name="summary")], True
    else:
        name = first_text(body.get("customType")) or "custom" if role in _EXTENSIONS else None
        writer = body.get("provenance")
        is_told = isinstance(writer, dict) and writer.get("kind") in _PROGRAMS
        event.machine = name is not None or is_told or body.get("runtimeContextCarrier") is True
        event.messages = [m | {"name": name} for m in read_messages([{"role": "user", "content": content}])[0]]


def id_of(record: JSON) -> str | None:
    """Return the id of a session header ("" if it has none); None for other lines."""
    logged = record.get("id")
    return None if record.get("type") not in _HEADERS else "" if logged is None else str(logged)


READER = Reader("pi", "session", recognises, read, id_of, header_mark=b'"session')
