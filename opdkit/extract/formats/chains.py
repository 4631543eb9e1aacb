"""Sessions put together from logged calls of a model, each with its whole prompt.

Call B continues call A when B's prompt begins with A's prompt and A's reply. Nothing else is trusted: clients share
session ids, turn numbers restart, lines come out of order. So the prompts are compared, as a chain of digests, one
digest a prompt prefix, and a call only ever hangs below one whose prompt and reply it repeats. Digests are held, not
messages: a unit may be as long as its log.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.markup import split_calls, split_thinking, without_end
from opdkit.chat.messages import dump
from opdkit.extract.formats.json_lines import parse
from opdkit.extract.formats.reader import LeftOut, Line, Rejected, rejected
from opdkit.store.skip_reasons import DUPLICATE, RETRY

NO_RECORD = "no record"  # a reply that only appears in later prompts: nobody knows who wrote it
REPEATED = "repeated record"
_DIGEST = 12  # bytes; a million records collide with a chance of 1e-17


@dataclass(slots=True)
class Call:
    """One call of a model as a log has it."""

    prompt: list[JSON]
    reply: JSON
    note: Note
    following: list[JSON] = field(default_factory=list)  # the next state, where it was logged with the call
    turn: Any = None  # its number in the session, where it was logged
    model: str | None = None
    tools: str | None = None
    logged: JSON = field(default_factory=dict)  # what the metadata keep of it
    session: str | None = None


def unit_of(call: Call) -> str:
    """The id under which a call is looked for with those that it continues: its session's, where the log says.

    Else a digest of how the prompt begins, up to its first user message: a call that continues another begins as that
    does, whatever trace it is in.
    """
    if call.session:
        return call.session
    chain = hashlib.blake2b(digest_size=_DIGEST)
    for told in call.prompt:
        chain.update(_canonical(told))
        if told["role"] == "user":
            break
    return f"~{chain.hexdigest()}"


ReadCall = Callable[[JSON], Call | LeftOut]


# -- comparing -------------------------------------------------------------------------------------------------------


def _canonical(told: JSON) -> bytes:
    """What of a message must agree for two to be the same: no whitespace, no thinking, no end marker, calls parsed."""
    text, calls = told["content"] or "", told["tool_calls"]
    if told["role"] == "assistant":
        text, markup = split_calls(split_thinking(without_end(text))[1])
        calls = calls or markup
    said = [told["role"], "".join(text.split())]
    try:
        found = [_call(c["name"], c["arguments"]) for c in calls]
        return orjson.dumps([*said, found], option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # it reads arguments nested deeper than it writes: then their text must agree
        return orjson.dumps([*said, [[c["name"], "".join(c["arguments"].split())] for c in calls]])


def _call(name: Any, arguments: Any) -> list[Any]:
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            arguments = "".join(arguments.split())
    return [name, arguments]


@dataclass(slots=True)
class _Node:
    """One record, by what it takes to link it: digests, not messages."""

    position: int  # in the unit
    depth: int  # messages in its prompt: the index of its reply in every later prompt
    prompt: bytes  # digest of the prompt
    tail: bytes  # digest of prompt and reply
    prefixes: bytes  # digests of the prompt up to each of its assistant messages, that one included
    turn: Any
    last: bytes  # the prompt's last message
    next: bytes | None  # its next state as logged
    parent: "_Node | None" = None
    children: list["_Node"] = field(default_factory=list)


def _node(position: int, call: Call) -> _Node:
    chain = hashlib.blake2b(digest_size=_DIGEST)
    prefixes = []
    last = b""
    for told in call.prompt:
        last = _canonical(told)
        chain.update(last)
        if told["role"] == "assistant":
            prefixes.append(chain.copy().digest())
    before = chain.digest()
    chain.update(_canonical(call.reply))
    reaction = _digest(_canonical(call.following[-1])) if call.following else None
    return _Node(position, len(call.prompt), before, chain.digest(), b"".join(prefixes), call.turn, _digest(last),
                 reaction)  # fmt: skip


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


# -- linking ---------------------------------------------------------------------------------------------------------


def _without_repeats(nodes: Sequence[_Node]) -> tuple[list[_Node], list[_Node]]:
    """(kept, repeats): of records with one prompt, one reply and one next state, only the first that knows it."""
    repeats: dict[int, _Node] = {}
    told: dict[bytes, list[_Node]] = {}
    for node in nodes:
        same = told.setdefault(node.tail, [])
        twin = next((k for k in same if node.next in (None, k.next) or k.next is None), None)
        if twin is not None and twin.next is None and node.next is not None:
            same.remove(twin)  # the same record again, now with its next state
            repeats[twin.position] = twin
        elif twin is not None:
            repeats[node.position] = node
            continue
        same.append(node)
    return [n for n in nodes if n.position not in repeats], list(repeats.values())


def _link(nodes: Sequence[_Node]) -> None:
    """Hang every record below the one that it continues: the longest prompt and reply that its own begins with."""
    tails: dict[bytes, list[_Node]] = {}
    for node in nodes:
        tails.setdefault(node.tail, []).append(node)
    for node in nodes:
        for end in range(len(node.prefixes), 0, -_DIGEST):
            found = tails.get(node.prefixes[end - _DIGEST : end])
            if found:
                node.parent = next((f for f in found if f.next == node.last), found[0])
                node.parent.children.append(node)
                break


def _retries(nodes: Sequence[_Node]) -> set[int]:
    """Positions of the replies that were thrown away: another reply to the same prompt went on, this one did not."""
    siblings: dict[bytes, list[_Node]] = {}
    for node in nodes:
        siblings.setdefault(node.prompt, []).append(node)
    lost: set[int] = set()
    for group in siblings.values():
        ranks = [2 if n.children else int(n.next not in (None, n.last)) for n in group]
        best = max(ranks)
        kept = {n.position for n, rank in zip(group, ranks, strict=True) if rank == best}
        if best == 0:  # none went on: the last one is what the user was left with
            kept = {group[-1].position}
        lost.update(n.position for n in group if n.position not in kept)
    return lost


def _foreign(node: _Node, after: _Node | None) -> bool:
    """True when the logged next state is the first message of another conversation that shares the session id.

    The recorder takes the last message of whatever prompt comes next under the id. If that prompt neither continues
    this one nor counts on (as it does after a compaction), its message is no reaction to this reply.
    """
    if after is None or node.next is None or after.last != node.next or after.parent is node:
        return False
    return not (isinstance(node.turn, int) and isinstance(after.turn, int) and after.turn == node.turn + 1)


# -- telling ---------------------------------------------------------------------------------------------------------


def read_chains(unit: Sequence[Line], read_call: ReadCall) -> Iterator[Conversation | Rejected | LeftOut]:
    """All calls under one logged id -> their conversations, the main ones first, in the order they ended."""
    nodes: list[_Node] = []
    for position, line in enumerate(unit):
        try:
            found = _read_node(position, line, read_call)
        except Unreadable as why:
            yield rejected(line, why)
            continue
        if isinstance(found, LeftOut):
            yield found
        else:
            nodes.append(found)
    nodes, repeats = _without_repeats(nodes)
    for node in repeats:
        yield rejected(unit[node.position], Unreadable(REPEATED))
    _link(nodes)
    retries = _retries(nodes)
    following = dict(zip((n.position for n in nodes), nodes[1:], strict=False))
    told: set[int] = set()
    leaves = [n for n in nodes if not n.children]
    for leaf in sorted(leaves, key=lambda n: (n.position in retries, n.position)):
        path = [leaf]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        path.reverse()
        trusted = not _foreign(leaf, following.get(leaf.position))
        yield _tell(unit, read_call, path, retries, told, trusted)
        told.update(n.position for n in path)


def _read_node(position: int, line: Line, read_call: ReadCall) -> _Node | LeftOut:
    """What is held of a call; its record is let go."""
    call = read_call(parse(line))
    if isinstance(call, LeftOut):
        return call
    dump({"records": [call.logged]})  # a call is set aside by itself, and never the session that it is told in
    return _node(position, call)


def _tell(
    unit: Sequence[Line], read_call: ReadCall, path: Sequence[_Node], retries: set[int], told: set[int], trusted: bool
) -> Conversation:
    """The conversation that ends with `path[-1]`: its prompt, in it the replies as they were logged, its reply."""
    leaf = path[-1]
    last = _again(unit, leaf, read_call)
    messages = [*last.prompt, last.reply, *(last.following if trusted else [])]
    notes = {i: Note(skip_reason=NO_RECORD) for i, m in enumerate(messages) if m["role"] == "assistant"}
    logged = []
    for node in path:
        own = last if node is leaf else _again(unit, node, read_call)
        messages[node.depth] = _merged(own.reply, messages[node.depth])
        notes[node.depth] = own.note
        skip = RETRY if node.position in retries else DUPLICATE if node.position in told else None
        own.note.skip_reason = skip or own.note.skip_reason
        logged.append({"line": unit[node.position].number} | own.logged | {"message_index": node.depth})
    first = unit[path[0].position]
    metadata = {"session_id": last.session, "records": logged}
    return Conversation(first.source, first.number, messages, last.model, last.tools, metadata, notes)


def _again(unit: Sequence[Line], node: _Node, read_call: ReadCall) -> Call:
    """The call of a node, which was read before and let go."""
    call = read_call(parse(unit[node.position]))
    assert isinstance(call, Call)
    return call


def _merged(reply: JSON, in_prompt: JSON) -> JSON:
    """The reply as recorded, with the call ids that the tool results in the next prompt refer to."""
    for call, later in zip(reply["tool_calls"], in_prompt["tool_calls"], strict=False):
        call["id"] = later["id"] or call["id"]
    return reply
