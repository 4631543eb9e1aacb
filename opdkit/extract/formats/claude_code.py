"""Session files of Claude Code: one event per line, a tree of events by `uuid` and `parentUuid`, one session per id.

    ~/.claude/projects/PROJECT/SESSION.jsonl, and agent-*.jsonl beside or below it for the sidechains of newer versions

All lines with one `sessionId` are one unit, in whichever files they are. A line without one (a snapshot, a summary)
belongs to the session of the line before it. The result of a parallel call is a child of the line of that call, on its
own branch. The active branch is the path from the last message up to its root, across compactions
(`logicalParentUuid`). A tree is skipped if it adds no reply to those kept: some clients write a session twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import as_list, first_text, read_messages
from opdkit.extract.formats.json_lines import COMMENT, parse
from opdkit.extract.formats.reader import Line, Reader, Rejected
from opdkit.extract.formats.sessions import join_reply, mark_gaps
from opdkit.extract.formats.trees import find_object
from opdkit.store.skip_reasons import ABORTED

SYNTHETIC = "synthetic"  # a reply that no model wrote
CLIENT_ONLY = "no reaction but the client's"
REPEATED = "repeated event"
_MESSAGES = ("user", "assistant")
_EVENTS = frozenset(("user", "assistant", "system", "progress", "attachment"))
_INTERRUPTED = "[Request interrupted by user]"
# Such as what /model prints, and commands of the shell that a person runs (`!ls`); not skills.
_OF_CLIENT = ("<local-command-", "<command-name>", "<task-notification>", "<bash-input>", "<bash-stdout>")
_PEOPLE = (None, "human", "channel", "unclassified")  # kinds of `origin`; others: the client, or other sessions
_BETWEEN = ("progress", "attachment")  # may stand between the pieces of one reply
_LATE = ("api_error", "stop_hook_summary", "turn_duration")  # may name an event before the last one as their parent
_HEADER = ("sessionId", "agentId", "cwd", "gitBranch", "version", "timestamp")


def recognises(record: JSON) -> bool:
    """Return whether the record is an event of the tree, or a snapshot, summary or queue operation beside it."""
    kind = record.get("type")
    if isinstance(kind, str) and kind in _EVENTS:
        has_parts = "parts" in body if isinstance(body := record.get("message"), dict) else False  # Qwen Code's
        return "uuid" in record and "parentUuid" in record and "sessionId" in record and not has_parts
    if kind == "file-history-snapshot":
        return "messageId" in record and "snapshot" in record
    return (kind == "summary" and "leafUuid" in record) or (kind == "queue-operation" and "sessionId" in record)


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """Read all lines of one session: the main conversations, then the sidechains, both in the order of the file."""
    events: list[_Event] = []
    gaps: set[int] = set()  # positions in `events`: an unreadable line came right before
    seen: set[str] = set()
    first: Line | None = None  # first readable line; a rejected session is reported under it
    for line in unit:
        try:
            event = _read_event(line, parse(line))
            if event.id is not None and event.id in seen:
                raise Unreadable(REPEATED)
            seen.add(event.id or "")
            events.append(event)
            first = first or line
        except Unreadable as problem:
            yield line.reject(problem)
            if problem.reason not in (COMMENT, REPEATED):
                gaps.add(len(events))
    summaries = [event.summary for event in events if event.summary]
    conversations = [_join_events(events, *branch) for branch in _find_branches(events, gaps)]
    for is_side in (False, True):
        for conversation in conversations:
            if any(note.kind == "side" for note in conversation.notes.values()) == is_side:
                conversation.metadata |= {"summaries": summaries} if summaries and not is_side else {}
                yield conversation
    if not conversations and first is not None:
        yield first.reject(Unreadable("no messages", "a session without messages"))


@dataclass(slots=True)
class _Event:
    """Line of a session: its place in the tree, and what it adds to the conversation."""

    source: str
    line: int
    kind: str
    id: str | None
    parent: str | None
    side: bool
    messages: list[JSON] = field(default_factory=list)
    results: set[str] = field(default_factory=set)  # user: ids of the calls that its tool messages answer
    failed: set[str] = field(default_factory=set)  # user: ids of the calls whose results are errors
    client: bool = False  # user: the client wrote it
    reply: str | None = None  # assistant: id of the reply of which this is a piece
    note: Note = field(default_factory=Note)  # assistant
    model: str | None = None
    header: JSON = field(default_factory=dict)
    summary: str | None = None
    compacts: bool = False
    late: bool = False  # its parent is the event before it, whatever it names


def _read_event(line: Line, record: JSON) -> _Event:
    kind = first_text(record.get("type"))
    if kind is None:
        raise Unreadable("event without a type")
    # After a compaction a new root begins, with the event before it as `logicalParentUuid`.
    parent = first_text(record.get("parentUuid"), record.get("logicalParentUuid"))
    side = record.get("isSidechain") is True
    event = _Event(line.source, line.number, kind, first_text(record.get("uuid")), parent, side)
    attachment = find_object(record, "attachment")
    is_by_person = find_object(attachment or record, "origin").get("kind") in _PEOPLE
    if kind == "summary":
        event.summary = first_text(record.get("summary"))
    elif kind == "attachment" and attachment.get("type") == "queued_command":
        # Typed by a person while the agent was working: the model sees it before its next reply.
        event.kind = "user"
        event.messages, _ = read_messages([{"role": "user", "content": attachment.get("prompt")}])
        event.client = attachment.get("commandMode", "prompt") != "prompt" or not is_by_person
    elif kind == "system":
        event.compacts = record.get("subtype") == "compact_boundary"
        event.late = not side and record.get("subtype") in _LATE
    if kind not in _MESSAGES:
        return event  # the model sees no progress, hooks, errors before a retry, snapshots or queues
    body = record.get("message")
    if not isinstance(body, dict):
        raise Unreadable("message is not an object", f"it is a {type(body).__name__}")
    if body.get("role", kind) != kind:
        raise Unreadable("unknown role", f"a {kind} event with role {str(body['role'])[:100]!r}")
    event.header = {key: record[key] for key in _HEADER if isinstance(record.get(key), str)}
    if kind == "user" and record.get("isCompactSummary") is True:
        event.compacts = True
        return event
    content = body.get("content")
    event.messages, notes = read_messages([{"role": kind, "content": content}])
    if kind == "assistant":
        event.reply, event.model = first_text(body.get("id")), first_text(body.get("model"))
        event.note = notes.get(0) or event.note
        event.note.finish_reason, event.note.kind = first_text(body.get("stop_reason")), "side" if side else "main"
        if event.model == "<synthetic>" or record.get("isApiErrorMessage") is True:
            event.model, event.note.skip_reason = None, SYNTHETIC
    else:
        event.results = {m["tool_call_id"] for m in event.messages if m["role"] == "tool" and m["tool_call_id"]}
        event.failed = {str(block.get("tool_use_id")) for block in as_list(content)
                        if isinstance(block, dict) and block.get("is_error") is True}  # fmt: skip
        text = event.messages[-1]["content"] or ""
        of_client = text.startswith(_OF_CLIENT) or not is_by_person
        event.client = record.get("isMeta") is True or (not event.results and of_client)
    return event


def _find_branches(events: Sequence[_Event], gaps: set[int]) -> list[tuple[list[int], set[int], int]]:
    """Return the active branch of every tree, in the order of the file.

    A branch is (positions of its events in ascending order, positions before which a line is missing, number of replies
    on other branches of the tree).
    """
    parents, breaks = _find_parents(events, gaps)
    trees: dict[int, list[int]] = {}
    for position, root in enumerate(_find_roots(parents)):
        if events[position].kind in _MESSAGES:
            trees.setdefault(root, []).append(position)
    replies = {p: event.reply or f"#{p}" for p, event in enumerate(events) if event.kind == "assistant"}
    branches: list[tuple[list[int], set[int], int]] = []
    kept: set[str] = set()  # replies
    # If a session was written twice, the tree that ends last is kept.
    for members in sorted(trees.values(), key=lambda m: m[-1], reverse=True):
        positions = _find_active(events, members, parents)
        active, every = ({replies[p] for p in places if p in replies} for places in (positions, members))
        if branches and active <= kept:
            continue  # all replies are kept already, or there are none, as after /clear
        branches.append((positions, breaks & set(positions), len(every - active - kept)))
        kept |= active
    return sorted((b for b in branches if any(events[p].messages for p in b[0])), key=lambda b: b[0][0])


def _find_parents(events: Sequence[_Event], gaps: set[int]) -> tuple[list[int | None], set[int]]:
    """Return (position of every event's parent, positions of the events before which a line is missing).

    A missing parent was an unreadable line, or was never written: the previous event takes its place. An event below
    progress or an attachment gets the parent of these, unless they are the root.
    """
    by_id = {event.id: i for i, event in enumerate(events) if event.id is not None}
    last: dict[bool, int] = {}  # by is-sidechain: position of the last event of the tree
    parents: list[int | None] = []
    breaks = set(gaps)
    open_gap = False
    for i, event in enumerate(events):
        open_gap = open_gap or i in gaps
        named = by_id.get(event.parent) if event.parent is not None else None
        # A sidechain is a tree of its own, apart from its caller's.
        parent = named if named is not None and events[named].side == event.side else None
        is_missing = (open_gap and named is None) or (not event.side and False in last)
        if event.late:
            parent = last.get(False)
        elif parent is not None and parent > i and event.compacts:
            parent = last.get(event.side)  # the end of the prompt is kept, and logged again after the summary
        elif parent is None and event.parent is not None and is_missing:
            parent = last.get(event.side)
            breaks.add(i)
        if parent is not None and parent < i and events[parent].kind in _BETWEEN and parents[parent] is not None:
            if parent in breaks:
                breaks.add(i)
            parent = parents[parent]
        parents.append(parent if parent != i else None)
        if event.id is not None:
            last[event.side] = i
    return parents, breaks


def _find_roots(parents: list[int | None]) -> list[int]:
    """Return the root of every event. If a damaged log has a cycle, the first event of the cycle becomes the root."""
    roots: list[int] = [-1] * len(parents)
    for start in range(len(parents)):
        path: dict[int, None] = {}  # an ordered set
        position = start
        while roots[position] < 0:
            path[position] = None
            parent = parents[position]
            if parent is None or parent in path:
                circle = [position] if parent is None else list(path)[list(path).index(parent) :]
                position = min(circle)
                parents[position], roots[position] = None, position
                break
            position = parent
        for member in path:
            roots[member] = roots[position]
    return roots


def _find_active(events: Sequence[_Event], members: Sequence[int], parents: Sequence[int | None]) -> list[int]:
    """Return the path from a tree's last member up to the root, plus pieces of its replies and results of its calls."""
    active: set[int] = set()
    position: int | None = members[-1]
    while position is not None:
        active.add(position)
        position = parents[position]
    replies = {events[p].reply for p in active} - {None}
    answered = {call for p in active for call in events[p].results}
    calls: set[str] = set()
    for member in members:
        event = events[member]
        if member not in active and parents[member] in active:
            same_reply = event.reply is not None and event.reply in replies
            if same_reply or (event.results and event.results <= calls - answered):
                active.add(member)
        if member in active:
            answered |= event.results
            calls.update(call["id"] for message in event.messages for call in message["tool_calls"])
    return sorted(active)


def _join_events(events: Sequence[_Event], positions: Sequence[int], breaks: set[int], left_out: int) -> Conversation:
    """Return the conversation of a branch. Pieces of one reply are joined if only tool results stand between them."""
    first = next(events[p] for p in positions if events[p].messages)
    conversation = Conversation(first.source, first.line, [])
    messages, notes = conversation.messages, conversation.notes
    open_reply: tuple[str | None, int] | None = None  # (message.id, index) of a reply that may have another piece
    client: set[int] = set()
    tool_errors: list[int] = []
    compacted: list[int] = []
    gaps: set[int] = set()
    for position in positions:
        event = events[position]
        if position in breaks:
            gaps.add(len(messages))
        if event.compacts and compacted[-1:] != [len(messages)]:
            compacted.append(len(messages))
        conversation.model = conversation.model or event.model
        if event.kind == "assistant" and open_reply is not None and open_reply[0] == event.reply:
            join_reply(messages[open_reply[1]], notes[open_reply[1]], event.messages[0], event.note)
            continue
        for message in event.messages:
            if event.kind == "assistant":
                open_reply = (event.reply, len(messages)) if event.reply is not None else None
                notes[len(messages)] = event.note
            elif message["role"] != "tool":
                open_reply = None
            if event.client:
                client.add(len(messages))
            if message["tool_call_id"] in event.failed:
                tool_errors.append(len(messages))
            messages.append(message)
    conversation.machine = {i for i in client if messages[i]["role"] == "user"}
    mark_gaps(conversation, gaps)
    mark_reactions(conversation, client)
    logged = {"compacted_before": compacted, "tool_errors": tool_errors, "other_branches": left_out}
    conversation.metadata = first.header | {key: value for key, value in logged.items() if value}
    return conversation


def mark_reactions(conversation: Conversation, client: set[int]) -> None:
    """Mark replies that the user cut off, and those that are followed by messages of the client alone."""
    following: list[int] = []
    for index in range(len(conversation.messages) - 1, -1, -1):
        if conversation.messages[index]["role"] != "assistant":
            following.append(index)
            continue
        note = conversation.notes[index]
        if note.skip_reason is None and following:
            if conversation.messages[following[-1]]["content"] == _INTERRUPTED:
                note.skip_reason = ABORTED
            elif client.issuperset(following):
                note.skip_reason = CLIENT_ONLY
        following = []


READER = Reader("claude_code", "id", recognises, read, lambda record: first_text(record.get("sessionId")), carries=True)
