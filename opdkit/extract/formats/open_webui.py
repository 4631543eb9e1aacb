"""Open WebUI's exports: chats, and feedback records with a copy of the chat at the time of the rating.

    {"id": ..., "title": ..., "chat": {"history": {"currentId": ..., "messages": {ID: {"parentId": ..., ...}}}}}
    {"type": "rating", "data": {"rating": 1}, "meta": {"chat_id": ..., "message_id": ...}, "snapshot": {"chat": {...}}}

Fields of Open WebUI 0.3 to 0.8: `annotation` holds a rating, `originalContent` a reply before a person or a filter
changed it, `output` the pieces of a reply. Older versions hold the pieces in `content` alone, with thinking and tool
calls as <details>.
"""

import html
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson

from opdkit.chat.conversation import JSON, Note, Unreadable
from opdkit.chat.messages import NOT_ONLY_TEXT, ROLES, as_list, first_text, join_content, message, read_messages
from opdkit.extract.formats.spans import drop_empty
from opdkit.extract.formats.trees import EDITED, Node, Tree, find_object, make_tree_reader, read_parent
from opdkit.store.skip_reasons import ABORTED

_OF_CHAT = ("models", "params", "tags")
_RATINGS = {1: 1, -1: -1, 0: 0, "1": 1, "-1": -1, "0": 0}
# Attribute values are escaped. No pattern matches beyond the next "<", so time is linear in the length of a reply.
_DETAILS = re.compile(r'<details type="(\w+)"([^<>]*)>\s*(?:<summary>[^<]*</summary>)?')
_DETAILS_END = re.compile(r"</details>\s*")
_ATTRIBUTE = re.compile(r'(?<!\w)(\w+)="([^"]*)"')
_CHANGED = "/changed"  # suffix of the id of a second node of a reply, with the text that the chat continued from
MERGED = "merged from several replies"  # skip reason
_QUOTED = re.compile(r"^> ?", re.MULTILINE)


def recognises(record: JSON) -> bool:
    """Return whether the record is a chat with its tree, or the rating of a message."""
    if record.get("type") == "rating":
        return isinstance(record.get("data"), dict) and isinstance(record.get("meta"), dict)
    return isinstance(find_object(find_object(record, "chat") or record, "history").get("messages"), dict)


def id_of(record: JSON) -> str | None:
    if record.get("type") != "rating":
        return first_text(record.get("id"))
    return first_text(find_object(record, "meta").get("chat_id"), find_object(record, "snapshot", "chat").get("id"))


def read_record(record: JSON) -> Tree:
    """Read a chat, or a feedback record. Raises Unreadable."""
    if record.get("type") != "rating":
        if not recognises(record):
            raise Unreadable("no messages", "nothing in chat.history.messages")
        return _read_chat(record)
    name = first_text(find_object(record, "meta").get("message_id"))
    if name is None:
        raise Unreadable("no messages", "a rating that names no message")
    tree = _read_chat(find_object(record, "snapshot", "chat"))
    return replace(tree, ratings={name: _read_rating(record.get("data"))}, time=record.get("updated_at"), is_copy=True)


def _read_chat(record: JSON) -> Tree:
    body = find_object(record, "chat") or record
    logged = find_object(body, "history", "messages")
    parents = {item["parentId"] for item in logged.values() if isinstance(find_object(item).get("parentId"), str)}
    tree = Tree(current=first_text(find_object(body, "history").get("currentId")), time=record.get("updated_at"))
    for name, item in logged.items():
        with tree.setting_aside(name, item):
            tree.nodes += [*_read_message(name, item, logged, parents)]
    changed = {node.id for node in tree.nodes} - logged.keys()
    system = first_text(find_object(body, "params").get("system"), body.get("system"))
    for node in tree.nodes:
        if node.parent is not None and node.parent + _CHANGED in changed:
            node.parent += _CHANGED
        elif system and node.parent is None:
            node.put_first(message("system", system))
    metadata = {key: value for key, value in record.items() if key not in ("chat", "history", "messages")}
    metadata |= {key: body[key] for key in _OF_CHAT if key in body}
    tree.metadata, tree.model = drop_empty(metadata), first_text(*as_list(body.get("models")))
    return tree


def _read_message(name: str, item: Any, logged: JSON, parents: Collection[str]) -> Iterator[Node]:
    """Yield the node of a message. If the chat continued from an edited or merged reply, yield a second node for it."""
    if not isinstance(item, dict):
        raise Unreadable("message is not an object", f"it is a {type(item).__name__}")
    parent, content, original = read_parent(item.get("parentId")), item.get("content"), item.get("originalContent")
    role = item.get("role")
    if role not in list(ROLES):
        raise Unreadable("unknown role", f"it has role {str(role)[:100]!r}")
    if role != "assistant":
        files = as_list(item.get("files"))
        kinds = [first_text(file.get("type")) or "file" for file in files if isinstance(file, dict)]
        if kinds:
            content = [{"type": "text", "text": content or ""}, *({"type": kind} for kind in kinds)]
        yield Node(name, parent, read_messages([{"role": role, "content": content}])[0])
        return
    asked = find_object(logged, parent or "").get("models")
    node = Node(name, parent, model=first_text(item.get("model")), parallel=isinstance(asked, list) and len(asked) > 1)
    is_changed = isinstance(original, str) and bool(original) and original != content
    pieces = item["output"] if isinstance(item.get("output"), list) and item["output"] and not is_changed else None
    node.messages, only_text = _join_pieces(_split(original if is_changed else content) if pieces is None else pieces)
    skip = "error" if item.get("error") else ABORTED if item.get("done") is False else None
    node.notes = _note_replies(node.messages, skip or (None if only_text else NOT_ONLY_TEXT))
    note = node.notes[max(node.notes)]
    note.add_decision(**_read_rating(item.get("annotation") or {"rating": item.get("rating")}))
    yield node
    text, part = (said.strip() if isinstance(said, str) else "" for said in (content, original))
    # Text only added before or after the original comes from a filter (statistics, say) and is not an edit.
    if is_changed and not (part and (text.startswith(part) or text.endswith(part))):
        messages, _ = _join_pieces(_split(content))
        notes = _note_replies(messages, EDITED)
        note.add_decision(edited=messages[max(notes)]["content"])
        if name in parents:
            yield replace(node, id=f"{name}{_CHANGED}", messages=messages, notes=notes)
    elif name in parents and (merged := first_text(find_object(item, "merged").get("content"))):
        messages, _ = _join_pieces(_split(merged))  # of the replies of several models, by one of them
        yield replace(node, id=f"{name}{_CHANGED}", messages=messages, notes=_note_replies(messages, MERGED))


def _note_replies(messages: Sequence[JSON], skip_reason: str | None) -> dict[int, Note]:
    return {i: Note(skip_reason=skip_reason) for i, m in enumerate(messages) if m["role"] == "assistant"}


def _read_rating(data: Any) -> JSON:
    """Return the fields of `decision` in tables.toml that an annotation or a feedback's data holds."""
    if not isinstance(data, dict):
        return {}
    rating = data.get("rating")
    known = [tag for tag in (*as_list(data.get("tags")), data.get("reason")) if first_text(tag)]
    value = _RATINGS.get(rating) if isinstance(rating, (int, float, str)) and not isinstance(rating, bool) else None
    return {"rating": value, "comment": first_text(data.get("comment")), "tags": list(dict.fromkeys(known))}


def _split(content: Any) -> Iterator[JSON]:
    """Yield the pieces of a reply that is stored as one text, in the form of `output`."""
    text, end = join_content(content) or "", 0
    while (match := _DETAILS.search(text, end)) and (close := _DETAILS_END.search(text, match.end())):
        kind, attributes = match.groups()
        if kind not in ("reasoning", "tool_calls"):
            yield {"type": kind}
            break
        yield {"type": "message", "content": text[end : match.start()].rstrip()}
        body, end = html.unescape(text[match.end() : close.start()]).strip(), close.end()
        if kind == "reasoning":
            yield {"type": "reasoning", "content": _QUOTED.sub("", body)}
            continue
        values = {key: html.unescape(value) for key, value in _ATTRIBUTE.findall(attributes)}
        call, result = _load(values.get("arguments")), _load(values.get("result")) or body
        yield {"type": "function_call", "call_id": values.get("id"), "name": values.get("name"), "arguments": call}
        yield {"type": "function_call_output", "call_id": values.get("id"), "output": result}
    yield {"type": "message", "content": text[end:]}


def _load(text: str | None) -> str:
    """Return the string that a JSON text holds; the text itself if it is anything else."""
    try:
        value = orjson.loads(text or '""')
    except orjson.JSONDecodeError:
        return text or ""
    return value if isinstance(value, str) else text or ""


def _join_pieces(pieces: Any) -> tuple[list[JSON], bool]:
    """Return (messages of a reply, at least one; True if they are only text, thinking, calls and results).

    Pieces after the result of a call begin another message. Raises Unreadable.
    """
    messages, only_text = [message("assistant", None)], True
    for piece in pieces:
        kind = piece.get("type") if isinstance(piece, dict) else None
        if kind == "function_call_output":
            output = piece.get("output")
            text = join_content(output) if isinstance(output, list) else first_text(output)
            messages.append(message("tool", text, tool_call_id=first_text(piece.get("call_id"))))
            continue
        if kind == "message":
            text = join_content(piece.get("content"), between="")
        elif kind == "reasoning":  # of summary or content
            text = read_messages([{"role": "assistant", "content": [piece]}])[0][0]["reasoning"]
        else:
            text, only_text = None, only_text and kind == "function_call"
        if kind != "function_call" and (not text or text.isspace()):
            continue
        if messages[-1]["role"] == "tool":
            messages.append(message("assistant", None))
        reply = messages[-1]
        if kind == "function_call":
            name, arguments = (first_text(piece.get(key)) or "" for key in ("name", "arguments"))
            reply["tool_calls"].append(
                {"id": first_text(piece.get("call_id")) or "", "name": name, "arguments": arguments}
            )
        else:
            key = "content" if kind == "message" else "reasoning"
            reply[key] = "\n".join(filter(None, (reply[key], text)))
    return messages, only_text


READER = make_tree_reader("open_webui", recognises, id_of, read_record, closer_than=("openai",))
