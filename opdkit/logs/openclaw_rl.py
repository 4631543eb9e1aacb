"""OpenClaw-RL record files: one line a turn, with the whole prompt of that turn.

A session is put together from records that continue each other: record B continues record A when B's prompt begins with
A's prompt and A's reply. The turn number and the session id are not trusted: clients share an id ("unknown"), numbers
restart, lines come out of order. So the prompts are compared, as a chain of digests, one digest a prompt prefix, and a
record only ever hangs below one whose prompt and reply it repeats; nothing else glues two records together.

The metadata holds the other fields of every record of a session; the rendered `prompt_text` says nothing that the
messages do not, and is left out.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from opdkit.logs.conversation import JSON, Conversation, Line, Note, Reader, Rejected, Unreadable, rejected
from opdkit.logs.messages import message, read_calls, read_messages, sampled_tokens
from opdkit.logs.openai import read_tools
from opdkit.logs.parse import dump, parse
from opdkit.logs.turns import DUPLICATE, RETRY

VOTES = "judge votes, not a conversation"
NO_RECORD = "no record"  # a reply that only appears in later prompts: nobody knows who wrote it
REPEATED = "repeated record"
_LEFT_OUT = frozenset(("messages", "prompt_text", "response_text", "tool_calls", "next_state", "session_id", "model",
                       "tools", "logprobs", "response_token_ids", "token_ids", "response_ids"))  # fmt: skip
_DIGEST = 12  # bytes; a million records collide with a chance of 1e-17
_THINKING = re.compile(r"\s*(?:<think>)?(.*?)</think>", re.DOTALL)
_END = re.compile(r"(?:(?:<\|im_end\|>|<\|eot_id\|>|<\|end\|>|<\|endoftext\|>|<end_of_turn>|</s>)\s*)+\Z")
_REPLY_HEADER = "<|im_start|>assistant\n"


def recognises(record: JSON) -> bool:
    """A prompt as messages with the reply beside it, or the judge's votes on one."""
    return is_votes(record) or ("response_text" in record and isinstance(record.get("messages"), list))


def is_votes(record: JSON) -> bool:
    """True for a line of the judge's own record file, which holds no conversation."""
    return "votes" in record and "session_id" in record and "messages" not in record


def logged_id(record: JSON) -> str:
    """The session id of a record, "unknown" where it has none, as OpenClaw-RL itself does."""
    value = record.get("session_id")
    return value if isinstance(value, str) and value else "unknown" if value in (None, "") else str(value)


def id_of(record: JSON) -> str | None:
    """The session id of a record of a conversation; None for the judge's votes."""
    return None if is_votes(record) else logged_id(record)


# -- comparing -------------------------------------------------------------------------------------------------------


def _canonical(told: JSON) -> bytes:
    """What of a message must agree for two to be the same: no whitespace, no thinking, no end marker, calls parsed."""
    text, calls = told["content"] or "", told["tool_calls"]
    if told["role"] == "assistant":
        text, markup = split_calls(split_thinking(_END.sub("", text))[1])
        calls = calls or markup
    said = [told["role"], "".join(text.split())]
    try:
        found = [_call(c["name"], c["arguments"]) for c in calls]
        return orjson.dumps([*said, found], option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # it reads arguments nested deeper than it writes: then their text must agree
        return orjson.dumps([*said, [[c["name"], "".join(c["arguments"].split())] for c in calls]])


def split_calls(text: str) -> tuple[str, list[JSON]]:
    """(text, calls) of a reply that spells its calls out between `<tool_call>` tags, as Hermes and Qwen templates do.

    A reply with a call that cannot be read stays as it is, without calls.
    """
    outside, *blocks = text.split("<tool_call>")
    rest, calls = [outside], []
    for block in blocks:
        body, closed, behind = block.partition("</tool_call>")
        try:
            calls += read_calls([orjson.loads(body)] if closed else None)
        except (orjson.JSONDecodeError, Unreadable):
            return text, []
        rest.append(behind)
    return ("".join(rest).strip(), calls) if calls else (text, [])


def _call(name: Any, arguments: Any) -> list[Any]:
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            arguments = "".join(arguments.split())
    return [name, arguments]


def split_thinking(text: str) -> tuple[str | None, str]:
    """ "<think>a</think>b" -> ("a", "b"). The opening tag may be in the prompt; unclosed thinking has no answer."""
    match = _THINKING.match(text)
    if match and (text.lstrip().startswith("<think>") or "<think>" not in match[1]):
        return match[1].strip() or None, text[match.end() :].lstrip()
    if text.lstrip().startswith("<think>"):
        return text.lstrip().removeprefix("<think>").strip() or None, ""
    return None, text


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


def _node(position: int, record: JSON) -> _Node:
    messages = record.get("messages")
    if is_votes(record):
        raise Unreadable(VOTES)
    if not isinstance(messages, list) or not messages:
        raise Unreadable("no messages", "the record has no prompt under `messages`")
    if not isinstance(record.get("response_text"), str):
        raise Unreadable("no reply", "the record has no `response_text`")
    # What `_tell` will write: a record is set aside by itself, and never the session that it is told in.
    read_tools(record.get("tools"))
    dump({"records": [_logged(record)]})
    prompt, _ = read_messages(messages)
    chain = hashlib.blake2b(digest_size=_DIGEST)
    prefixes = []
    last = b""
    for told in prompt:
        last = _canonical(told)
        chain.update(last)
        if told["role"] == "assistant":
            prefixes.append(chain.copy().digest())
    before = chain.digest()
    chain.update(_canonical(reply_of(record)))
    following = _next_state(record)
    reaction = _digest(_canonical(following[-1])) if following else None
    return _Node(position, len(prompt), before, chain.digest(), b"".join(prefixes), record.get("turn"), _digest(last),
                 reaction)  # fmt: skip


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


def _next_state(record: JSON) -> list[JSON]:
    """The logged next state as messages: of several parallel tool results only the last, the log has no more."""
    following = record.get("next_state")
    messages = read_messages([following])[0] if following else []
    return messages if messages and messages[0]["role"] in ("user", "tool") else []


def reply_of(record: JSON) -> JSON:
    """The reply of a record as a message: thinking apart, end markers gone, calls from the log or from the markup.

    Where the template's rendering of the prompt was no prefix of the whole, the recorder wrote the whole conversation.
    Raises Unreadable when the reply cannot be told from it.
    """
    text: str = record["response_text"]
    prompt = record.get("prompt_text")
    # Every template opens with a control token and a role, which no reply does.
    if isinstance(prompt, str) and prompt and text.startswith(prompt[:12]):
        if _REPLY_HEADER not in text:
            raise Unreadable("reply is the whole conversation", "and no assistant header is in it")
        text = text.rsplit(_REPLY_HEADER, 1)[1]
    reasoning, answer = split_thinking(_END.sub("", text))
    answer, markup = split_calls(answer)
    calls = read_calls(record["tool_calls"]) if record.get("tool_calls") else markup
    return message("assistant", answer or None, reasoning=reasoning, tool_calls=calls)


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


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """All records under one logged session id -> its conversations, the main ones first, in the order they ended."""
    nodes: list[_Node] = []
    for position, line in enumerate(unit):
        try:
            nodes.append(_node(position, parse(line)))
        except Unreadable as why:
            yield rejected(line, why)
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
        yield _tell(unit, path, retries, told, trusted=not _foreign(leaf, following.get(leaf.position)))
        told.update(n.position for n in path)


def _tell(
    unit: Sequence[Line], path: Sequence[_Node], retries: set[int], told: set[int], trusted: bool
) -> Conversation:
    """The conversation that ends with `path[-1]`: its prompt, in it the replies as they were recorded, its reply."""
    leaf = path[-1]
    record = parse(unit[leaf.position])
    messages, _ = read_messages(record["messages"])
    messages += [reply_of(record), *(_next_state(record) if trusted else [])]
    notes = {i: Note(skip_reason=NO_RECORD) for i, m in enumerate(messages) if m["role"] == "assistant"}
    logged = []
    for node in path:
        own = record if node is leaf else parse(unit[node.position])
        messages[node.depth] = _merged(reply_of(own), messages[node.depth])
        notes[node.depth] = _note(own, node, retries, told)
        logged.append({"line": unit[node.position].number} | _logged(own))
    first = unit[path[0].position]
    model = record.get("model")
    return Conversation(
        first.source,
        first.number,
        messages,
        model=model if isinstance(model, str) and model else None,
        tools=read_tools(record.get("tools")),
        metadata={"session_id": logged_id(record), "records": logged},
        notes=notes,
    )


def _logged(record: JSON) -> JSON:
    """What the metadata keep of a record."""
    return {k: v for k, v in record.items() if k not in _LEFT_OUT}


def _merged(reply: JSON, in_prompt: JSON) -> JSON:
    """The reply as recorded, with the call ids that the tool results in the next prompt refer to."""
    for call, later in zip(reply["tool_calls"], in_prompt["tool_calls"], strict=False):
        call["id"] = later["id"] or call["id"]
    return reply


def _note(record: JSON, node: _Node, retries: set[int], told: set[int]) -> Note:
    ids, logprobs = sampled_tokens(record)
    skip = RETRY if node.position in retries else DUPLICATE if node.position in told else None
    side = record.get("turn_type") == "side"
    finish = record.get("finish_reason")
    return Note(finish if isinstance(finish, str) else None, skip, "side" if side else "main", ids, logprobs)


READER = Reader("openclaw_rl", "id", recognises, read, id_of=id_of)
