"""Sessions assembled from logged model calls, each with its whole prompt.

Call B continues call A if B's prompt begins with A's prompt and A's reply. Nothing else is trusted: clients share
session ids, turn numbers restart, lines come out of order. So the prompts are compared, as a chain of digests with one
digest per prompt prefix. The parent of a call is always one whose prompt and reply it repeats. Memory holds digests and
not messages, since a unit may be a whole log; only replies that later conversations share are kept.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import orjson

from opdkit.chat.conversation import JSON, LEFT_OUT, Conversation, Note, Unreadable
from opdkit.chat.markup import split_reply
from opdkit.chat.messages import dump, first_choice, first_text, read_messages
from opdkit.extract.formats.items import has_items, openai_messages
from opdkit.extract.formats.json_lines import parse
from opdkit.extract.formats.reader import LeftOut, Line, Reader, Rejected
from opdkit.extract.formats.sessions import read_pieces
from opdkit.extract.mapping import value_at
from opdkit.store.skip_reasons import DUPLICATE, RETRY

NO_CALL = f"{LEFT_OUT}no model call"
NO_RECORD = "no record"  # a reply that only later prompts hold: it is unknown who wrote it
REPEATED = "repeated record"
_OF_REPLY = {"content", "tool_calls", "function_call", "additional_kwargs"}
_DIGEST = 12  # bytes; a million records collide with a probability of 1e-17
_blake = partial(hashlib.blake2b, digest_size=_DIGEST)


@dataclass(slots=True)
class Call:
    """Model call as logged."""

    prompt: list[JSON]
    reply: JSON
    note: Note
    following: list[JSON] = field(default_factory=list)  # the next state, if it was logged with the call
    turn: Any = None  # its number in the session, if logged
    model: str | None = None
    tools: str | None = None
    logged: JSON = field(default_factory=dict)  # fields for the metadata
    session: str | None = None


ReadCall = Callable[[JSON], Call | LeftOut]
_Key = tuple[Any, ...]


def call_reader(
    name: str,
    recognises: Callable[[JSON], bool],
    read_call: ReadCall,
    id_of: Callable[[JSON], str | None] | None = None,
    unfold: Callable[[JSON], list[JSON]] | None = None,
    closer_than: tuple[str, ...] = (),
) -> Reader:
    """Return the reader of a format with one model call per record. Without `id_of`, _find_session groups the calls.

    `read_call` may raise Unreadable.
    """
    id_of = id_of or partial(_find_session, read_call)
    read = partial(read_chains, read_call)
    return Reader(name, "id", recognises, read, id_of=id_of, unfold=unfold, closer_than=closer_than)


def require_prompt(value: Any, why: str) -> list[Any]:
    """Return the prompt of a call as a list of logged messages. It may be logged as a text, or as one message.

    Raises Unreadable, with `why` as the detail, if there is no prompt.
    """
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    items = [value] if isinstance(value, dict) and "role" in value else value
    if not isinstance(items, list) or not items:
        raise Unreadable("no messages", why)
    return items


def read_prompt(items: Sequence[Any], system: Any) -> list[JSON]:
    """Return the messages of a prompt, `system` first if given. `items` may be Responses items. Raises Unreadable."""
    opening = [{"role": "system", "content": system}] if system else []
    if has_items(items):
        return read_pieces([*opening, *openai_messages(items)])[0]
    return read_messages([*opening, *items])[0]


def read_reply(output: Any) -> tuple[JSON, Note]:
    """Return the output of a call as (message, note). Raises Unreadable.

    `output` is a text, a message, a list of parts or of messages, a response with choices, or a response of the
    Responses API with its items. Of several messages the last one is read, of several choices the first.
    """
    if isinstance(output, dict) and isinstance(output.get("output"), list):
        pieces = openai_messages(output["output"])
        messages, notes = read_pieces([piece for piece in pieces if piece["role"] == "assistant"])
        if not messages:
            raise Unreadable("no reply", "no item of the output is a message of the assistant")
        reason = value_at(output, ("incomplete_details", "reason"))
        notes[0].finish_reason = first_text(reason, output.get("status"))
        return messages[0], notes[0]
    if isinstance(output, dict) and isinstance(output.get("choices"), list) and output["choices"]:
        choice = first_choice(output["choices"])
        body = choice.get("message", choice) if isinstance(choice, dict) else None
        if isinstance(body, dict):
            body = {key: value for key, value in choice.items() if key != "message"} | body
        output = body
    if isinstance(output, list) and output:
        parts = all(isinstance(part, dict) and "type" in part and "role" not in part for part in output)
        output = {"content": output} if parts else output[-1]
    if isinstance(output, str):
        output = {"content": output}
    if not isinstance(output, dict) or not _OF_REPLY & output.keys():
        raise Unreadable("no reply", "the output is not a message")
    (reply, *_), notes = read_messages([output | {"role": "assistant"}])
    note = notes.get(0) or Note()
    note.finish_reason = note.finish_reason or first_text(output.get("stop_reason"))
    return reply, note


def _find_session(read_call: ReadCall, record: JSON) -> str | None:
    """Return the id that groups a call with those that it may continue: that of its session, if logged.

    Otherwise it is a digest of the prompt up to its first user message. A call that continues another begins with the
    same messages, even in another trace. None if the record is not of a model call.
    """
    call = read_call(record)
    if isinstance(call, LeftOut):
        return None
    if call.session:
        return call.session
    chain = _blake()
    for message in call.prompt:
        chain.update(_normalise(message))
        if message["role"] == "user":
            break
    return f"~{chain.hexdigest()}"


def _normalise(message: JSON) -> bytes:
    """Return what two equal messages must share: role, text (no whitespace, thinking or end marker), parsed calls."""
    text, calls = message["content"] or "", message["tool_calls"]
    if message["role"] == "assistant":
        _, text, markup = split_reply(text)
        calls = calls or markup
    agreed = [message["role"], "".join(text.split())]
    as_text = [(call["name"], "".join(call["arguments"].split())) for call in calls]
    parsed: list[tuple[str, Any]] = []
    for call, (name, arguments) in zip(calls, as_text, strict=True):
        try:
            parsed.append((name, orjson.loads(call["arguments"])))
        except orjson.JSONDecodeError:
            parsed.append((name, arguments))
    try:
        return orjson.dumps([*agreed, parsed], option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes: compare text
        return orjson.dumps([*agreed, as_text])


@dataclass(slots=True)
class _Node:
    """Record reduced to what linking needs: digests instead of messages."""

    position: int  # in the unit
    depth: int  # messages in its prompt: the index of its reply in every later prompt
    prompt: bytes  # digest of the prompt
    tail: bytes  # digest of prompt and reply
    prefixes: bytes  # digests of the prompt up to and including each of its assistant messages
    turn: Any
    last: bytes  # digest of the prompt's last message
    next: bytes | None  # digest of the last message of its logged next state
    decision: bytes | None  # digest of what a person decided about the reply
    id: Any  # of the call, as logged
    first: int  # position of this record, or of the first one that it replaces
    parent: "_Node | None" = None
    children: list["_Node"] = field(default_factory=list)


def _make_node(position: int, call: Call) -> _Node:
    chain, last, prefixes = _blake(), b"", []
    for message in call.prompt:
        last = _normalise(message)
        chain.update(last)
        if message["role"] == "assistant":
            prefixes.append(chain.copy().digest())
    prompt = chain.digest()
    chain.update(_normalise(call.reply))
    tail, last = chain.digest(), _blake(last).digest()
    reaction = _blake(_normalise(call.following[-1])).digest() if call.following else None
    decision = _blake(dump(call.note.decision).encode()).digest() if call.note.decision else None
    return _Node(position, len(call.prompt), prompt, tail, b"".join(prefixes), call.turn, last, reaction, decision,
                 call.logged.get("id"), position)  # fmt: skip


def _split_repeats(nodes: Sequence[_Node]) -> tuple[list[_Node], list[_Node]]:
    """Return (kept, repeats). A repeat has a kept record's prompt and reply, and no next state or decision of its own.

    A record replaces an earlier one that says only a part of it, or that has the same call id and reply.
    """
    repeats: dict[int, _Node] = {}
    kept: dict[_Key, _Node] = {}  # by prompt, reply, next state and decision
    calls: dict[_Key, _Node] = {}  # by call id, prompt and reply: the last record that was kept
    said = Counter[_Key]()  # number of kept records that contain the key, in whole or in part
    for node in nodes:
        parts, whole, call = _list_keys(node), (node.tail, node.next, node.decision), (node.tail, repr(node.id))
        if said[whole]:
            repeats[node.position] = node
            continue
        # Kept records that say only a part of what this one says.
        older = {other.position: other for part in parts if (other := kept.get(part)) is not None}
        if node.id is not None and (other := calls.get(call)) is not None:
            older[other.position] = other
        for position in sorted(older.keys() - repeats.keys()):
            other = repeats[position] = older[position]
            node.first = min(node.first, other.first)
            said.subtract(_list_keys(other))
            del kept[other.tail, other.next, other.decision]
        said.update(parts)
        kept[whole] = calls[call] = node
    return [n for n in nodes if n.position not in repeats], list(repeats.values())


def _list_keys(node: _Node) -> set[_Key]:
    """Return the keys of a record: its prompt and reply with next state and decision, with either, and with neither."""
    return {(node.tail, following, decision) for following in (node.next, None) for decision in (node.decision, None)}


def _link(nodes: Sequence[_Node]) -> None:
    """Set each record's parent: the record with the longest prompt and reply with which its own prompt begins."""
    first: dict[_Key, _Node] = {}  # by prompt and reply, with and without the next state
    for node in nodes:
        first.setdefault((node.tail, None), node)
        first.setdefault((node.tail, node.next), node)
    for node in sorted(nodes, key=lambda n: n.first):
        for end in range(len(node.prefixes), 0, -_DIGEST):
            tail = node.prefixes[end - _DIGEST : end]
            node.parent = first.get((tail, node.last)) or first.get((tail, None))
            if node.parent is not None:
                node.parent.children.append(node)
                break


def _find_retries(nodes: Sequence[_Node]) -> set[int]:
    """Return the positions of discarded replies: another reply to the same prompt was continued, this one was not.

    A reply with a person's decision or a reaction of its own is never discarded: another user, who asked the same, may
    have received it.
    """
    siblings: dict[bytes, list[_Node]] = {}
    for node in nodes:
        siblings.setdefault(node.prompt, []).append(node)
    lost: set[int] = set()
    for group in siblings.values():
        ranks = [2 if n.children else int(n.next not in (None, n.last)) for n in group]  # 1: has a logged next state
        best = max(ranks)
        kept = {n.position for n, rank in zip(group, ranks, strict=True) if rank == best}
        if best == 0:  # none was continued: the user was left with the last one
            kept = {group[-1].position}
        spared = kept | {n.position for n, rank in zip(group, ranks, strict=True) if rank or n.decision is not None}
        lost.update(n.position for n in group if n.position not in spared)
    return lost


def _find_holders(nodes: Sequence[_Node]) -> dict[int, int]:
    """Return position of a record -> position of the last record of the one conversation in which its reply counts.

    If several calls continue a reply, it counts in the branch whose call has the logged next state; else in the branch
    with the most calls, the later one if equal. The other branches may be side calls (for a title, say) or messages
    that the user took back, which are not reactions to the reply.
    """
    calls, holders = dict[int, int](), dict[int, int]()
    for node in sorted(nodes, key=lambda n: -n.depth):  # children first: they are deeper
        calls[node.position] = 1 + sum(calls[n.position] for n in node.children)
        ranks = [(node.next == child.last, calls[child.position], child.position) for child in node.children]
        main = node.children[ranks.index(max(ranks))] if ranks else None
        holders[node.position] = holders[main.position] if main else node.position
    return holders


def _is_next_state_foreign(node: _Node, after: _Node | None) -> bool:
    """Return whether the logged next state comes from another conversation with the same session id.

    A recorder that numbers the turns (OpenClaw-RL's) logs the last message of the next prompt with this session id. If
    that prompt neither continues this one nor has the next turn number (as it has after a compaction), its message is
    not a reaction to this reply.
    """
    if after is None or node.next is None or after.last != node.next or after.parent is node:
        return False
    return isinstance(node.turn, int) and isinstance(after.turn, int) and after.turn != node.turn + 1


def read_chains(read_call: ReadCall, unit: Sequence[Line]) -> Iterator[Conversation | Rejected | LeftOut]:
    """Yield the conversations of all calls under one logged id, in the order of the first record that each adds.

    When records are appended, conversations keep their numbers, unless a record makes two earlier ones one.
    """
    nodes: list[_Node] = []
    for position, line in enumerate(unit):
        try:
            call = read_call(parse(line))
            if isinstance(call, LeftOut):
                yield call
                continue
            dump({"records": [call.logged]})  # reject a call that cannot be written, not its whole session
            nodes.append(_make_node(position, call))
        except Unreadable as problem:
            yield line.reject(problem)
    nodes, repeats = _split_repeats(nodes)
    for node in repeats:
        yield unit[node.position].reject(Unreadable(REPEATED))
    _link(nodes)
    retries = _find_retries(nodes)
    following = {node.position: after for node, after in pairwise(nodes)}
    holders = _find_holders(nodes)
    begins: dict[int, int] = {}  # position of a record -> that of the first record its conversation adds up to it
    for node in sorted(nodes, key=lambda n: n.depth):  # lines may come out of order: parents first
        continued = node.parent if node.parent and node.parent.children[0] is node else node
        begins[node.position] = min(begins.get(continued.position, node.first), node.first)
    leaves = [n for n in nodes if not n.children]
    reader = _CallReader(unit, read_call, nodes)
    for leaf in sorted(leaves, key=lambda n: begins[n.position]):
        path = [leaf]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        path.reverse()
        with_next = not _is_next_state_foreign(leaf, following.get(leaf.position))
        conversation = _read_path(unit, reader, path, with_next)
        for node in path:
            note = conversation.notes[node.depth]
            is_elsewhere = holders[node.position] != leaf.position
            skip = RETRY if node.position in retries else DUPLICATE if is_elsewhere else None
            note.skip_reason = skip or note.skip_reason
        yield conversation


class _CallReader:
    """Second pass over the calls: parses each one once for all its conversations, and keeps no prompts."""

    def __init__(self, unit: Sequence[Line], read_call: ReadCall, nodes: Sequence[_Node]) -> None:
        self._unit, self._read_call = unit, read_call
        self._kept: dict[int, Call] = {}
        self._uses = Counter[int]()  # position of a record -> its conversations yet to be read
        for node in sorted(nodes, key=lambda n: -n.depth):  # children first: they are deeper
            self._uses[node.position] = sum(self._uses[child.position] for child in node.children) or 1

    def read(self, node: _Node) -> Call:
        """Return the call of a record for the next of its conversations. Only the first one gets the prompt."""
        call = self._kept.pop(node.position, None) or self._read_call(parse(self._unit[node.position]))
        assert isinstance(call, Call)
        self._uses[node.position] -= 1
        if self._uses[node.position]:
            reply = call.reply | {"tool_calls": [dict(tool_call) for tool_call in call.reply["tool_calls"]]}
            self._kept[node.position] = replace(call, prompt=[], reply=reply, note=copy(call.note), following=[])
        return call


def _read_path(unit: Sequence[Line], reader: _CallReader, path: Sequence[_Node], with_next: bool) -> Conversation:
    """Return the conversation of `path`: the last call's prompt with the logged replies put in, and the last reply."""
    leaf = path[-1]
    last = reader.read(leaf)
    messages = [*last.prompt, last.reply, *(last.following if with_next else [])]
    notes = {i: Note(skip_reason=NO_RECORD) for i, m in enumerate(messages) if m["role"] == "assistant"}
    records = []
    for node in path:
        call = last if node is leaf else reader.read(node)
        # Tool results in the last prompt refer to the call ids in that prompt, which may differ from the logged ones.
        for own, later in zip(call.reply["tool_calls"], messages[node.depth]["tool_calls"], strict=False):
            own["id"] = later["id"] or own["id"]
        messages[node.depth] = call.reply
        notes[node.depth] = call.note
        records.append({"line": unit[node.position].number} | call.logged | {"message_index": node.depth})
    first = unit[path[0].position]
    metadata = {"session_id": last.session, "records": records}
    return Conversation(first.source, first.number, messages, last.model, last.tools, metadata, notes)
