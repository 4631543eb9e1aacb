"""Sessions from a tree of messages, as chat front ends store it: every path from a root to a leaf is a session.

    U1 - A1 - U2 - A2      U1 A1 U2 A2     the branch that the user last saw comes first
      \\- A1'               U1 A1'          A1 was kept: A1' holds it under `decision.kept`

A reply that stands in several branches is trainable only in the first one; `Note.message_id` identifies the copies.
Only the links to parents are followed. Messages that no root leads to are rejected, each with its reason.

A conversation may be logged more than once: in two exports, or as a copy with each rating of a message.
`make_tree_reader` makes one tree of all records with the same id, wherever they are.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from opdkit.chat.conversation import JSON, LEFT_OUT, NO_DECISION, Conversation, Note, Unreadable
from opdkit.chat.messages import check_message_count, dump
from opdkit.config.conditions import parse_time
from opdkit.extract.formats.json_lines import parse
from opdkit.extract.formats.reader import LeftOut, Line, Reader, Rejected

REPEATED, NO_PARENT, CIRCLE = "repeated message", "missing parent", "parents form a cycle"
TOO_MANY = "too many branches"
EMPTY_CONVERSATION = f"{LEFT_OUT}empty conversation"
NOT_THERE = f"{LEFT_OUT}rating of a missing message"  # people may delete what they have rated
EDITED = "edited by a person"  # skip reason of an edited text, which no model wrote
# Limit for all branches of a tree together: characters, with 1,000 added per message. It bounds the memory of a tree.
MOST_CHARACTERS = 1 << 28
_OF_MESSAGE = 1_000
_NEVER = datetime.fromtimestamp(0, UTC)


@dataclass(slots=True, eq=False)
class Node:
    """Message of a tree as the client stores it: one or more `messages`, or none if the model reads nothing of it."""

    id: str
    parent: str | None  # None: a root
    messages: list[JSON] = field(default_factory=list)  # `message` of tables.toml
    notes: dict[int, Note] = field(default_factory=dict)  # on the replies, by index in `messages`
    machine: bool = False  # a program wrote its user messages
    model: str | None = None
    parallel: bool = False  # written at the same time as its siblings: only continuing from it shows a choice

    @property
    def last_note(self) -> Note | None:
        """Note on the last reply, which is what people rate and edit; None if there is no reply."""
        index = max((i for i, m in enumerate(self.messages) if m["role"] == "assistant"), default=None)
        return None if index is None else self.notes.setdefault(index, Note())

    def put_first(self, system: JSON) -> None:
        """Insert the conversation's system message before the messages of this node, which is a root."""
        self.messages.insert(0, system)
        self.notes = {index + 1: note for index, note in self.notes.items()}


@dataclass(slots=True)
class Tree:
    """Record of a conversation: its messages, or ratings of messages (perhaps of other records), or both."""

    nodes: list[Node] = field(default_factory=list)
    current: str | None = None  # node that the user last saw
    metadata: JSON = field(default_factory=dict)
    model: str | None = None
    ratings: dict[str, JSON] = field(default_factory=dict)  # id of a message -> fields of `decision` in tables.toml
    time: Any = None  # as logged
    is_copy: bool = False  # was logged with a rating: an export outranks it
    problems: list[tuple[Unreadable, bytes]] = field(default_factory=list)  # rejected messages, as JSON

    @contextlib.contextmanager
    def setting_aside(self, name: str, item: Any) -> Iterator[None]:
        """Reject the message `item`, whose id is `name`, if the body of the `with` raises Unreadable."""
        try:
            yield
        except Unreadable as why:
            named = Unreadable(why.reason, f"message {name}: {why.detail}")
            self.problems.append((named, dump(item).encode()))


def make_tree_reader(
    name: str,
    recognises: Callable[[JSON], bool],
    id_of: Callable[[JSON], str | None],
    read_record: Callable[[JSON], Tree],
    closer_than: tuple[str, ...] = (),
) -> Reader:
    """Return the reader of a format whose records are conversations, ratings, or both, joined by `id_of`.

    If a conversation has several records, the latest outranks the others; messages that only others hold are added.
    `read_record` may raise Unreadable.
    """
    return Reader(name, "id", recognises, partial(_read_records, read_record), id_of, closer_than=closer_than)


def _read_records(
    read_record: Callable[[JSON], Tree], unit: Sequence[Line]
) -> Iterator[Conversation | Rejected | LeftOut]:
    records: list[tuple[Line, Tree]] = []
    for line in unit:
        try:
            records.append((line, read_record(parse(line))))
            yield from (line._replace(data=data).reject(why) for why, data in records[-1][1].problems)
        except Unreadable as problem:
            yield line.reject(problem)
    records.reverse()  # of equally old records, the last in the log counts as the latest
    records.sort(key=lambda record: (not record[1].is_copy, parse_time(record[1].time) or _NEVER), reverse=True)
    nodes: list[Node] = []
    by_id: dict[str, Node] = {}
    times: dict[str, Any] = {}  # node id -> time of the record that the node is from
    for _, tree in records:
        own, time = [node for node in tree.nodes if node.id not in by_id], parse_time(tree.time)
        nodes += own
        by_id |= {node.id: node for node in own}
        times |= {node.id: time for node in own}
    for _, record in reversed(records):
        for message_id, fields in record.ratings.items():
            note = by_id[message_id].last_note if message_id in by_id else None
            if note is None:
                yield LeftOut(NOT_THERE)
                continue
            own, rated, written = (note.decision or NO_DECISION)["rating"], parse_time(record.time), times[message_id]
            if len({own, fields.get("rating")} - {None}) < 2 or not (rated and written and rated < written):
                note.add_decision(**fields)  # else a later record of the message has another rating
    chats = [record for record in records if record[1].nodes or not record[1].ratings]
    for line, tree in chats[:1]:
        if any(node.messages for node in nodes):
            try:
                yield from read_branches(line, nodes, tree.current, tree.metadata, tree.model)
            except Unreadable as problem:
                yield line.reject(problem)
        elif not any(one.problems for _, one in records):
            yield from (LeftOut(EMPTY_CONVERSATION) for _ in chats)


def read_parent(value: Any) -> str | None:
    """Return the logged id of a parent; None for a root. Raises Unreadable."""
    if value is not None and not isinstance(value, str):
        raise Unreadable("parent of unknown shape", f"a parent is a {type(value).__name__}")
    return value or None


def find_object(record: Any, *keys: str) -> JSON:
    """Return the object at a path of names; {} if there is none."""
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record if isinstance(record, dict) else {}


_Children = Mapping[str | None, list[Node]]


def read_branches(
    line: Line, nodes: Iterable[Node], current: str | None, metadata: JSON, model: str | None = None
) -> Iterator[Conversation | Rejected]:
    """Yield one conversation per branch of the tree: first the branch through `current`, then the rest, depth-first.

    Siblings keep the order of `nodes`. `metadata` and `model` hold for all branches; the last model that a branch names
    outranks `model`. If the user kept one of several replies to the same prompt, the others get its text as
    `decision.kept`. Raises Unreadable if there are too many nodes, or none has a message.
    """
    by_id: dict[str, Node] = {}
    for node in nodes:
        if node.id in by_id:
            yield _reject(line, node, REPEATED)
        by_id.setdefault(node.id, node)
    check_message_count(list(by_id))
    children: dict[str | None, list[Node]] = {}
    for node in by_id.values():
        children.setdefault(node.parent, []).append(node)
    reached = _list_below(children, None)
    orphans = [node for key in children if key not in by_id and key is not None for node in _list_below(children, key)]
    in_circles = by_id.keys() - {node.id for node in (*reached, *orphans)}
    for reason, lost in ((NO_PARENT, orphans), (CIRCLE, [by_id[name] for name in by_id if name in in_circles])):
        yield from (_reject(line, node, reason) for node in lost if node.messages)
    if not any(node.messages for node in by_id.values()):
        raise Unreadable("no messages", "a conversation without messages")

    last = current if current in {node.id for node in reached} else None
    kept_path: list[Node] = []
    while last is not None:
        kept_path.append(by_id[last])
        last = by_id[last].parent
    kept_path.reverse()
    _mark_regenerated(children, kept_path)
    branches = _find_branches(children, reached, {node.id for node in kept_path})
    for number, path in enumerate(branches, 1):
        conversation = _join(line, path, model)
        conversation.metadata, conversation.branch = dict(metadata), number if len(branches) > 1 else 0
        yield conversation
    held = {node.id for path in branches for node in path}
    yield from (_reject(line, node, TOO_MANY) for node in reached if node.messages and node.id not in held)


def _reject(line: Line, node: Node, reason: str) -> Rejected:
    """Return one node of a tree as a row of the rejected table."""
    detail = f"message {node.id}" + (f", parent {node.parent}" if node.parent is not None else "")
    return Rejected(line.source, line.number, reason, detail, dump(node.messages).encode())


def _list_below(children: _Children, parent: str | None) -> list[Node]:
    """Return all nodes below a parent, each after its own parent."""
    nodes = list(children.get(parent, ()))
    for node in nodes:  # the list grows
        nodes.extend(children.get(node.id, ()))
    return nodes


def _find_branches(children: _Children, reached: Sequence[Node], kept: Collection[str]) -> list[list[Node]]:
    """Return the path to the last node with messages of each branch, the path through the nodes `kept` first.

    After the first, a path is left out if it would bring the size of all paths above MOST_CHARACTERS.
    """
    with_message: set[str | None] = set()  # ids of nodes with a message, in the node or below it
    for node in reversed(reached):
        if node.messages or node.id in with_message:
            with_message |= {node.id, node.parent}
    branches: list[list[Node]] = []
    path: list[Node] = []
    sizes = [0]  # of the path up to each of its nodes
    total = 0
    stack = [(0, node) for node in _order(children.get(None, ()), kept)]
    while stack:
        depth, node = stack.pop()
        if node.id not in with_message:
            continue
        del path[depth:], sizes[depth + 1 :]
        path.append(node)
        texts = (len(m["content"] or "") + len(m["reasoning"] or "") + len(str(m["tool_calls"])) for m in node.messages)
        sizes.append(sizes[-1] + _OF_MESSAGE * max(1, len(node.messages)) + sum(texts))
        below = [(depth + 1, child) for child in _order(children.get(node.id, ()), kept) if child.id in with_message]
        stack += below
        if not below and (not branches or total + sizes[-1] <= MOST_CHARACTERS):
            total += sizes[-1]
            branches.append(list(path))
    return branches


def _order(siblings: Iterable[Node], kept: Collection[str]) -> list[Node]:
    """Return siblings in the order of a stack: reversed, so that a node of `kept` is last and is taken first."""
    return sorted(siblings, key=lambda node: node.id not in kept)[::-1]


def _mark_regenerated(children: _Children, kept_path: Sequence[Node]) -> None:
    """Set `decision.kept` of each reply that was not kept, if the kept reply to the same prompt is text alone."""
    for position, chosen in enumerate(kept_path):
        others = [node for node in children[chosen.parent] if node is not chosen]
        if not others:
            continue
        kept = next(filter(None, map(_read_first, kept_path[position:])), None)
        if kept is None or kept[0]["role"] != "assistant" or kept[0]["tool_calls"] or not kept[0]["content"]:
            continue
        if kept[1].skip_reason not in (None, EDITED) or (chosen.parallel and chosen is kept_path[-1]):
            continue
        text = (kept[1].decision or NO_DECISION)["edited"] or kept[0]["content"]
        for node in others:  # the list grows
            message, note = _read_first(node) or (None, Note())
            if message is None:
                others.extend(children.get(node.id, ()))
                continue
            own = message["content"], (note.decision or NO_DECISION)["edited"]
            is_reply = message["role"] == "assistant" and (message["content"] or message["tool_calls"])
            if is_reply and text not in own:
                note.add_decision(kept=text)


def _read_first(node: Node) -> tuple[JSON, Note] | None:
    """Return (message, note) of the first message of a node that is neither system nor thinking alone."""
    for index, message in enumerate(node.messages):
        if message["role"] != "system" and not _is_thinking(message):
            return message, node.notes.setdefault(index, Note()) if message["role"] == "assistant" else Note()
    return None


def _is_thinking(message: JSON) -> bool:
    """Return True for a message of thinking alone, which some clients store apart from the reply it belongs to."""
    return bool(message["reasoning"]) and not message["content"] and not message["tool_calls"]


def _join(line: Line, path: Iterable[Node], model: str | None) -> Conversation:
    """Return the conversation of a branch. Thinking and the reply after it become one message."""
    conversation = Conversation(line.source, line.number, [], model)
    messages, notes = conversation.messages, conversation.notes
    for node in path:
        conversation.model = node.model or conversation.model
        for index, message in enumerate(node.messages):
            if message["role"] == "assistant":
                if messages and messages[-1]["role"] == "assistant" and _is_thinking(messages[-1]):
                    thoughts = (messages.pop()["reasoning"], message["reasoning"])
                    message = message | {"reasoning": "\n".join(filter(None, thoughts))}
                note = node.notes.get(index, Note())
                notes[len(messages)] = replace(note, message_id=f"{node.id}/{index}")
            elif node.machine and message["role"] == "user":
                conversation.machine.add(len(messages))
            messages.append(message)
    return conversation
