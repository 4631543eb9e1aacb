"""Session rollouts of Codex: one item of the Responses API per line, one session per file.

Files: ~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl. Lines have `timestamp`, `type` and `payload`. Settings, snapshots
and events that repeat items are left out, since the model does not read them. Two older grammars are read, too: items
after a bare header line, and one object with `session` and `items`. A fork begins with its own header, followed by a
copy of its parent's lines, header included; newer ones may only name the file and its lines (`history_base`). Codex
repeats the header of a session within it when a setting changes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import as_list, first_text, message, read_messages
from opdkit.extract.formats.claude_code import SYNTHETIC
from opdkit.extract.formats.items import is_call, openai_messages
from opdkit.extract.formats.json_lines import COMMENT, parse
from opdkit.extract.formats.reader import Line, Reader, Rejected
from opdkit.extract.formats.sessions import GAP, join_reply
from opdkit.extract.formats.trees import Node, find_object, read_branches
from opdkit.extract.mapping import value_at
from opdkit.store.skip_reasons import ABORTED, DUPLICATE

_KINDS = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
_OF_CLIENT = ("<turn_aborted>", "<environment_context>", "<user_instructions>", "# AGENTS.md instructions", "<skill>",
              "<subagent_notification>", "<permissions instructions>", "<goal_context>", "<codex_internal_context",
              "<hook_prompt", "<recommended_plugins>", "<user_shell_command>")  # fmt: skip
_REVIEW = "<user_action>"  # beginning of a message with a review; Codex itself words the reply to it
_INNER = ("subagent", "guardian_review", "memory_consolidation")  # threads that no person began
ELSEWHERE = "history in another file"
_PARTS = ("input_text", "output_text", "input_image")


def recognises(record: JSON) -> bool:
    """Return whether the record is a line of one of the grammars. A bare header alone is not enough."""
    kind = record.get("type")
    if not isinstance(kind, str):
        of_state = record.get("record_type") == "state" and "previous_response_id" in record
        return of_state or (isinstance(record.get("session"), dict) and isinstance(record.get("items"), list))
    if kind in _KINDS:
        return isinstance(record.get("payload"), dict)
    if kind == "message" and "role" in record:
        content = record.get("content")
        part = content[0] if isinstance(content, list) and content else None
        return isinstance(part, dict) and part.get("type") in _PARTS
    return is_call(record) or (kind == "reasoning" and "summary" in record and "encrypted_content" in record)


def _find_header(record: JSON) -> JSON | None:
    """Return the header that a line is or contains; None for other lines."""
    kind = record.get("type")
    if kind == "session_meta":
        header = record.get("payload")
    elif kind is None and "record_type" not in record:
        header = record.get("session") if isinstance(record.get("items"), list) else record
    else:
        return None
    return header if isinstance(header, dict) and isinstance(header.get("id"), str) else None


def id_of(record: JSON) -> str | None:
    """Return the session id of a header; None for other lines."""
    header = _find_header(record)
    return None if header is None else header["id"]


@dataclass(slots=True)
class _Session:
    """Session as far as it has been read."""

    nodes: list[Node] = field(default_factory=list)
    path: list[Node] = field(default_factory=list)  # the branch that continues
    header: JSON | None = None
    compacted: list[int] = field(default_factory=list)
    model: str | None = None
    gap: bool = False  # lines after the last message could not be read

    def add(self, added: JSON, note: Note | None) -> None:
        """Add a message to the branch, or the next piece of its last reply. Only replies have a `note`."""
        last = self.path[-1] if self.path else None
        if last is not None and note is not None and last.last_note is not None and not self.gap:
            join_reply(last.messages[0], last.last_note, added, note)
            return
        if last is not None and note is not None and _is_review(last.messages[0]):
            note.skip_reason = SYNTHETIC
        of_client = added["role"] == "user" and (added["content"] or "").startswith((*_OF_CLIENT, _REVIEW))
        notes = {} if note is None else {0: note}
        node = Node(str(len(self.nodes)), last.id if last else None, [added], notes, machine=of_client)
        self.path.append(node)
        self.nodes.append(node)
        if note is not None and self.gap:
            self.skip_last_reply(GAP)
            self.gap = False

    def last_reply(self) -> Node | None:
        """Return the last reply of the branch, if there is one."""
        return next((node for node in reversed(self.path) if node.messages[0]["role"] == "assistant"), None)

    def skip_last_reply(self, reason: str) -> None:
        """Mark the last reply of the branch as one that cannot be trained on."""
        last = self.last_reply()
        if last is not None and (note := last.last_note) is not None:
            note.skip_reason = note.skip_reason or reason


def _is_review(message: JSON) -> bool:
    return message["role"] == "user" and (message["content"] or "").startswith(_REVIEW)


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """Read all lines of one session: first the branch that continued, then the branches that were rolled back."""
    session = _Session()
    first: Line | None = None  # first readable line; a rejected session is reported under it
    is_rejected = False  # `first` is in the rejected table already
    for line in unit:
        problems: list[Unreadable] = []
        try:
            record = parse(line)
        except Unreadable as problem:
            record, problems = {}, [problem]
        header = None if problems else _find_header(record)
        items = as_list(record.get("items")) if header is not None and "session" in record else []
        for piece in [] if problems else [header or record, *items]:
            try:
                _read_piece(session, piece, is_header=piece is header)
                first = first or line
            except Unreadable as problem:
                problems.append(problem)
        if problems:
            yield line.reject(problems[0])
            is_rejected = is_rejected or first is line
        if any(problem.reason != COMMENT for problem in problems):
            session.skip_last_reply(GAP)
            session.gap = True
        own, place = (session.header or {}).get("subagent_history_start_ordinal"), record.get("ordinal")
        if isinstance(own, int) and isinstance(place, int) and place < own:
            session.skip_last_reply(DUPLICATE)  # a copy of the parent's lines
    if first is None:
        return
    header = session.header or {}
    is_side = "subagent" in find_object(header, "source") or header.get("thread_source") in _INNER
    is_rest = find_object(header, "history_base").get("end_ordinal_exclusive", 0) != 0
    for note in filter(None, (node.last_note for node in session.nodes)):
        note.kind = "side" if is_side else note.kind
        note.skip_reason = note.skip_reason or (ELSEWHERE if is_rest else None)
    metadata = {key: value for key, value in header.items() if key != "base_instructions"}
    current = session.path[-1].id if session.path else None
    try:
        for item in read_branches(first, session.nodes, current, metadata, session.model):
            if isinstance(item, Conversation) and item.branch < 2 and session.compacted:
                item.metadata["compacted_before"] = session.compacted
            yield item
    except Unreadable as problem:
        if not is_rejected:
            yield first.reject(problem)


def _read_piece(session: _Session, record: Any, is_header: bool) -> None:
    """Add a line, or one item of a line, to its session. Raises Unreadable."""
    if is_header:
        if session.header is None:
            session.header = record
            text = first_text(value_at(record, ("base_instructions", "text")))
            if text is not None:
                session.add(message("system", text), None)
        return
    kind, payload = (record.get("type"), record.get("payload", record)) if isinstance(record, dict) else (None, record)
    if not isinstance(payload, dict):
        raise Unreadable("item of unknown shape", f"it is a {type(payload).__name__}")
    event = payload.get("type") if kind == "event_msg" else None
    if kind == "turn_context":
        session.model = first_text(payload.get("model")) or session.model
    elif kind == "compacted":
        session.compacted.append(len(session.path))
    elif event == "turn_aborted":
        last = next((node for node in reversed(session.path) if not node.machine), None)
        if last is not None and last is session.last_reply():
            session.skip_last_reply(ABORTED)
    elif event == "thread_rolled_back":
        turns, count = payload.get("num_turns"), 0
        while session.path and isinstance(turns, int) and count < turns:
            removed = session.path.pop()
            is_turn = not removed.machine or _is_review(removed.messages[0])
            count += removed.messages[0]["role"] == "user" and is_turn
        session.compacted = [index for index in session.compacted if index <= len(session.path)]
    elif kind == "inter_agent_communication":
        session.add(read_messages(openai_messages([payload | {"type": "agent_message"}]))[0][0], None)
    elif (kind == "response_item" or payload is record) and "record_type" not in payload:
        messages, notes = read_messages(openai_messages([payload]))
        for index, added in enumerate(messages):
            session.add(added, notes.get(index, Note()) if added["role"] == "assistant" else None)


READER = Reader("codex", "session", recognises, read, id_of, header_mark=b'"timestamp"', repeats_headers=True)
