"""Session files of Claude Code: one event a line, a tree of events by `uuid` and `parentUuid`, one session an id.

    ~/.claude/projects/PROJECT/SESSION.jsonl, and agent-*.jsonl beside or below it for the sidechains of newer versions

All lines with one `sessionId` are one unit, whatever file they are in; lines without one (snapshots, summaries) belong
to the session around them. What the files do, and what is made of it:

- The blocks of one assistant message are lines of their own that share `message.id`: they become one message again.
- Results of parallel calls hang each below the line of its call, on branches of their own: all that answer a call of
  the conversation are told, after it, in the order of the file, and are one next state.
- Of a rewound or resumed conversation the active branch is told, from the last message up to its root; a summary after
  a compaction is no message but metadata, and the way goes on to what came before it (`logicalParentUuid`). A tree
  whose replies are all told already, as clients that write a session down twice leave it, is not told again.
- A sidechain (`isSidechain`: what a subagent was told and answered) is a conversation of its own, all of it side.
- Images are dropped for a placeholder with their type. `toolUseResult` repeats the result and is left out.
- Replies that Claude Code made up itself (`<synthetic>`, API errors) are kept as turns that cannot be trained on; so
  are replies that the user cut off, and those that only a message of the client follows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import read_messages
from opdkit.extract.formats.gaps import mark_gaps
from opdkit.extract.formats.json_lines import COMMENT, parse
from opdkit.extract.formats.reader import Line, Reader, Rejected, rejected

SYNTHETIC = "synthetic"  # a reply that no model wrote
ABORTED = "aborted"
CLIENT_ONLY = "no reaction but the client's"
REPEATED = "repeated event"
_TOLD = ("user", "assistant")
_EVENTS = frozenset(("user", "assistant", "system", "progress", "attachment"))
_INTERRUPTED = "[Request interrupted by user]"
_OF_CLIENT = ("<local-command-", "<command-name>")  # what a command such as /model prints; skills begin otherwise
_HEADER = ("sessionId", "agentId", "cwd", "gitBranch", "version", "timestamp")


def recognises(record: JSON) -> bool:
    """An event of the tree, or one of those beside it."""
    kind = record.get("type")
    if isinstance(kind, str) and kind in _EVENTS:
        return "uuid" in record and "parentUuid" in record and "sessionId" in record
    if kind == "file-history-snapshot":
        return "messageId" in record and "snapshot" in record
    return (kind == "summary" and "leafUuid" in record) or (kind == "queue-operation" and "sessionId" in record)


def id_of(record: JSON) -> str | None:
    return _text(record, "sessionId")


@dataclass(slots=True)
class _Event:
    """One line, by what it takes to find its place and to tell it."""

    line: Line  # without its data
    kind: str
    id: str | None
    parent: str | None
    side: bool
    messages: list[JSON]
    reply: str | None  # assistant: the id of the message that this is a piece of
    note: JSON  # assistant: model, finish reason, whether made up
    client: bool  # user: written by the client
    failed: set[str]  # user: calls whose results are errors
    header: JSON
    summary: str | None = None
    compacts: bool = False

    @property
    def results(self) -> set[str]:
        return {m["tool_call_id"] for m in self.messages if m["role"] == "tool" and m["tool_call_id"]}


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """All lines of one session -> its conversations: the main ones, then the sidechains, each by its first line."""
    events: list[_Event] = []
    gaps: list[int] = []  # positions in `events` right before which a line could not be read
    seen: set[str] = set()
    first: Line | None = None  # that could be read: the session's own place among what is set aside
    for line in unit:
        try:
            event = _event(line, parse(line))
            if event.id is not None and event.id in seen:
                raise Unreadable(REPEATED)
            seen.add(event.id or "")
            events.append(event)
            first = first or line
        except Unreadable as why:
            yield rejected(line, why)
            if why.reason not in (COMMENT, REPEATED):
                gaps.append(len(events))
    told = [_tell(events, branch) for branch in _branches(events, gaps)]
    summaries = [e.summary for e in events if e.summary]
    for conversation in sorted(told, key=lambda c: any(n.kind == "side" for n in c.notes.values())):
        if summaries and not any(n.kind == "side" for n in conversation.notes.values()):
            conversation.metadata["summaries"] = summaries
        yield conversation
    if not told and first is not None:
        yield rejected(first, Unreadable("no messages", "a session without one message"))


# -- one event -------------------------------------------------------------------------------------------------------


def _text(item: Any, key: str) -> str | None:
    value = item.get(key) if isinstance(item, dict) else None
    return value if isinstance(value, str) and value else None


def _event(line: Line, record: JSON) -> _Event:
    kind = _text(record, "type")
    if kind is None:
        raise Unreadable("event without a type")
    # After a compaction the root is a new one, which names the event before it.
    parent = _text(record, "parentUuid") or _text(record, "logicalParentUuid")
    event = _Event(Line(line.source, line.number, b""), kind, _text(record, "uuid"), parent,
                   record.get("isSidechain") is True, [], None, {}, False, set(), {})  # fmt: skip
    if kind == "summary":
        event.summary = _text(record, "summary")
    if kind == "attachment" and _text(record.get("attachment"), "type") == "queued_command":
        return _typed_meanwhile(event, record["attachment"])
    if kind not in _TOLD:
        event.compacts = kind == "system" and record.get("subtype") == "compact_boundary"
        return event  # progress, hooks, errors before a retry, snapshots, queues: nothing that the model was told
    body = record.get("message")
    if not isinstance(body, dict):
        raise Unreadable("message is no object", f"it is a {type(body).__name__}")
    if body.get("role", kind) != kind:
        raise Unreadable("unknown role", f"a {kind} event with role {str(body['role'])[:100]!r}")
    event.header = {key: record[key] for key in _HEADER if isinstance(record.get(key), str)}
    if kind == "user" and record.get("isCompactSummary") is True:
        event.compacts = True
        return event
    event.messages, _ = read_messages([{"role": kind, "content": body.get("content")}])
    if kind == "assistant":
        event.reply = _text(body, "id")
        model = _text(body, "model")
        made_up = model == "<synthetic>" or record.get("isApiErrorMessage") is True
        event.note = {"model": None if made_up else model, "finish": _text(body, "stop_reason"), "made_up": made_up}
    else:
        blocks = body.get("content")
        event.failed = {str(b.get("tool_use_id")) for b in (blocks if isinstance(blocks, list) else [])
                        if isinstance(b, dict) and b.get("is_error") is True}  # fmt: skip
        text = event.messages[-1]["content"] or ""
        event.client = record.get("isMeta") is True or (not event.results and text.startswith(_OF_CLIENT))
    return event


def _typed_meanwhile(event: _Event, attachment: JSON) -> _Event:
    """What a person typed while the agent was at work: the model is told before its next reply."""
    event.kind = "user"
    event.messages, _ = read_messages([{"role": "user", "content": attachment.get("prompt")}])
    event.client = attachment.get("commandMode", "prompt") != "prompt"  # a background task that has ended, say
    return event


# -- the tree --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Branch:
    """One conversation: what of the events is told, by position, in the order of the file."""

    positions: list[int]
    gaps: set[int]  # positions before which a line is missing
    left_out: int = 0  # replies on other branches of its tree


def _branches(events: Sequence[_Event], gaps: Sequence[int]) -> list[_Branch]:
    """What is told of every tree, the trees in the order of the file."""
    parents, breaks = _parents(events, gaps)
    roots = _roots(parents)
    trees: dict[int, list[int]] = {}
    for position, root in enumerate(roots):
        if events[position].kind in _TOLD:
            trees.setdefault(root, []).append(position)
    found: list[_Branch] = []
    told: set[str] = set()  # replies
    # A session that was written down twice is told as it ended.
    for members in sorted(trees.values(), key=lambda m: m[-1], reverse=True):
        branch = _active(events, members, parents)
        replies = {_reply_key(events, p) for p in branch.positions if events[p].kind == "assistant"}
        if found and replies <= told:
            continue  # told already; or none, as what /clear leaves behind
        branch.gaps = breaks & set(branch.positions)
        every = {_reply_key(events, p) for p in members if events[p].kind == "assistant"}
        branch.left_out = len(every - replies - told)
        told |= replies
        found.append(branch)
    return sorted((b for b in found if any(events[p].messages for p in b.positions)), key=lambda b: b.positions[0])


def _reply_key(events: Sequence[_Event], position: int) -> str:
    return events[position].reply or f"#{position}"


def _parents(events: Sequence[_Event], gaps: Sequence[int]) -> tuple[list[int | None], set[int]]:
    """(position of every event's parent, positions of the events that a line is missing before).

    Where lines could not be read, a parent that is not there was one of them: the event before stands in for it.
    """
    by_id = {event.id: i for i, event in enumerate(events) if event.id is not None}
    last: dict[bool, int] = {}  # the last event of the tree, main and side
    parents: list[int | None] = []
    missing, breaks = set(gaps), set(gaps)
    open_gap = False
    for i, event in enumerate(events):
        open_gap = open_gap or i in missing
        parent = by_id.get(event.parent) if event.parent is not None else None
        if parent is not None and events[parent].side != event.side:
            parent = None  # a sidechain begins where the main conversation called it
        elif parent is None and event.parent is not None and open_gap:
            parent = last.get(event.side)
            breaks.add(i)
        parents.append(parent if parent != i else None)
        if event.id is not None:
            last[event.side] = i
    return parents, breaks


def _roots(parents: list[int | None]) -> list[int]:
    """The root of every event. Where a damaged log runs in a circle, its first event is the root."""
    roots: list[int] = [-1] * len(parents)
    for start in range(len(parents)):
        way: list[int] = []
        on_way: set[int] = set()
        at = start
        while roots[at] < 0:
            way.append(at)
            on_way.add(at)
            parent = parents[at]
            if parent is None or parent in on_way:
                at = at if parent is None else min(way[way.index(parent) :])
                parents[at] = None
                roots[at] = at
                break
            at = parent
        for position in way:
            roots[position] = roots[at]
    return roots


def _active(events: Sequence[_Event], members: Sequence[int], parents: Sequence[int | None]) -> _Branch:
    """The way from the last member of a tree up to its root, and what hangs beside it but belongs to it."""
    told: set[int] = set()
    at: int | None = members[-1]
    while at is not None:
        told.add(at)
        at = parents[at]
    replies = {events[p].reply for p in told} - {None}
    answered = {call for p in told for call in events[p].results}
    calls: set[str] = set()
    for position in members:
        event = events[position]
        parent = parents[position]
        if position not in told and parent in told:
            same_reply = event.reply is not None and event.reply in replies
            if same_reply or (event.results and event.results <= calls - answered):
                told.add(position)
        if position in told:
            answered |= event.results
            calls.update(c["id"] for m in event.messages for c in m["tool_calls"])
    return _Branch(sorted(told), set())


# -- telling ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Telling:
    """A conversation in the making."""

    told: Conversation
    open: tuple[str, int] | None = None  # the reply whose next piece may still come: (message.id, index)
    client: set[int] = field(default_factory=set)
    errors: list[int] = field(default_factory=list)
    compacted: list[int] = field(default_factory=list)
    gaps: set[int] = field(default_factory=set)


def _tell(events: Sequence[_Event], branch: _Branch) -> Conversation:
    chosen = [events[p] for p in branch.positions]
    first = next(e for e in chosen if e.messages)
    making = _Telling(Conversation(first.line.source, first.line.number, []))
    for position in branch.positions:
        if position in branch.gaps:
            making.gaps.add(len(making.told.messages))
        _add(making, events[position])
    told = making.told
    told.machine = {i for i in making.client if told.messages[i]["role"] == "user"}
    mark_gaps(told, making.gaps)
    _mark_reactions(told, making.client)
    found = {"compacted_before": making.compacted, "tool_errors": making.errors, "other_branches": branch.left_out}
    told.metadata = first.header | {k: v for k, v in found.items() if v}
    return told


def _add(making: _Telling, event: _Event) -> None:
    told = making.told
    if event.compacts and making.compacted[-1:] != [len(told.messages)]:
        making.compacted.append(len(told.messages))
    if event.kind == "assistant":
        _add_piece(making, event)
        return
    for message in event.messages:
        if message["role"] != "tool":
            making.open = None
        if event.client:
            making.client.add(len(told.messages))
        if message["tool_call_id"] in event.failed:
            making.errors.append(len(told.messages))
        told.messages.append(message)


def _add_piece(making: _Telling, event: _Event) -> None:
    """A piece of the reply before it, with at most results between them, or a new reply."""
    told, (piece,) = making.told, event.messages
    if making.open is not None and making.open[0] == event.reply:
        index = making.open[1]
        message = told.messages[index]
        for key in ("content", "reasoning"):
            message[key] = (
                "\n".join(t for t in (message[key], piece[key]) if t is not None) if piece[key] else message[key]
            )
        message["tool_calls"] = [*message["tool_calls"], *piece["tool_calls"]]
    else:
        index = len(told.messages)
        told.messages.append(piece)
        making.open = (event.reply, index) if event.reply is not None else None
    note = told.notes.setdefault(index, Note(kind="side" if event.side else "main"))
    note.finish_reason = event.note["finish"] or note.finish_reason
    if event.note["made_up"]:
        note.skip_reason = SYNTHETIC
    told.model = told.model or event.note["model"]


def _mark_reactions(told: Conversation, client: set[int]) -> None:
    """Replies that were cut off, and those that are followed by nothing that a person or a tool said."""
    following: list[int] = []
    for index in range(len(told.messages) - 1, -1, -1):
        if told.messages[index]["role"] != "assistant":
            following.append(index)
            continue
        note = told.notes[index]
        if note.skip_reason is None and following:
            if told.messages[following[-1]]["content"] == _INTERRUPTED:
                note.skip_reason = ABORTED
            elif client.issuperset(following):
                note.skip_reason = CLIENT_ONLY
        following = []


READER = Reader("claude_code", "id", recognises, read, id_of=id_of, carries=True)
