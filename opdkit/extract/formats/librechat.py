"""LibreChat's JSON exports of a conversation: all branches or one, as a list or with messages nested in `children`.

The branch with the newest message is the one that the user kept. Siblings are in the order of their times.
"""

import re
from typing import Any

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.chat.messages import as_list, check_message_count, first_text, message, read_messages, require_list
from opdkit.extract.formats.feedback import add_feedback
from opdkit.extract.formats.sessions import split_blocks
from opdkit.extract.formats.trees import Node, Tree, find_object, make_tree_reader
from opdkit.extract.mapping import value_at
from opdkit.store.skip_reasons import ABORTED

_KEYS = ("messages", "messagesTree")
_NOT_READ = ("agent_update", "activity_label", "summary")  # parts of a reply for the client alone
PARALLEL = "one of several replies"  # skip reason
_NO_PARENT = "00000000-0000-0000-0000-000000000000"
_THINKING = re.compile(r"\A:::thinking\s(.*?)\n:::(?:\s+|\Z)", re.DOTALL)  # before a reply, in older versions


def recognises(record: JSON) -> bool:
    """Return whether the record is a conversation with messages of LibreChat."""
    first = find_object(value_at(record.get("messages") or record.get("messagesTree"), (0,)))
    return "conversationId" in record and "messageId" in first and "isCreatedByUser" in first


def read_record(record: JSON) -> Tree:
    """Read a conversation. Raises Unreadable."""
    stack: list[tuple[Any, str | None]] = []
    if not any(isinstance(record.get(key), list) for key in _KEYS):
        raise Unreadable("no messages", f"no list at {' or '.join(_KEYS)}")
    for key in _KEYS:
        if record.get(key):
            stack += [(item, None) for item in reversed(require_list(record[key], key))]
    tree = Tree(model=first_text(value_at(record, ("options", "model"))))
    nodes = tree.nodes
    times: list[str] = []
    newest = ""
    while stack:
        item, above = stack.pop()
        check_message_count(nodes)
        fields = find_object(item)
        name = first_text(fields.get("messageId")) or f"#{len(nodes) + len(tree.problems)}"
        own = {key: value for key, value in fields.items() if key != "children"} if fields else item
        with tree.setting_aside(name, own):
            nodes.append(_read_node(own, above, name))
            if (time := first_text(fields.get("createdAt")) or newest) >= newest:
                newest, tree.current = time, name
        times += filter(None, (first_text(fields.get(key)) for key in ("createdAt", "updatedAt")))
        stack += [(child, name) for child in reversed(as_list(fields.get("children")))]
    if system := first_text(value_at(record, ("options", "promptPrefix"))):
        known = {node.id for node in nodes}
        for node in (node for node in nodes if node.parent not in known):
            node.put_first(message("system", system))
    tree.metadata = {key: value for key, value in record.items() if key not in _KEYS}
    if times:
        tree.metadata["created_at"] = min(times)  # the record has no time of its own
        tree.time = max(times)  # `exportAt` is a time of day, so the latest message dates the export
    return tree


def _read_node(item: Any, above: str | None, name: str) -> Node:
    """Return a message, nested in the message `above` if any, as the node with the id `name`. Raises Unreadable."""
    if not isinstance(item, dict) or not isinstance(item.get("isCreatedByUser"), bool):
        raise Unreadable("message without a role", "it has no isCreatedByUser")
    parent = first_text(item.get("parentMessageId"), above)
    node = Node(name, None if parent == _NO_PARENT else parent)
    if item["isCreatedByUser"]:
        files = [{"type": "file"} for _ in as_list(item.get("files"))]
        quotes = [
            re.sub("^", "> ", text, flags=re.MULTILINE) for text in map(first_text, as_list(item.get("quotes"))) if text
        ]
        text = item.get("text") or ""
        if quotes and isinstance(text, str):
            text = "\n\n".join([*quotes, text])
        node.messages, _ = read_messages([{"role": "user", "content": [*files, {"text": text}]}])
        return node
    node.model = first_text(item.get("model"))
    content = [part for part in as_list(item.get("content")) if part is not None]  # the array may be sparse
    *thoughts, text = _THINKING.split(first_text(item.get("text")) or "", maxsplit=1)
    parts = [part for part in content if not _is_of_added_agent(part)] or [
        *({"type": "think", "think": t.strip()} for t in thoughts),
        {"type": "text", "text": text},
    ]
    node.messages, node.notes = read_messages(split_blocks(block for part in parts for block in _convert_part(part)))
    note, feedback = node.last_note, item.get("feedback")
    if note is not None:
        note.finish_reason = first_text(item.get("finish_reason"))
        note.skip_reason = "error" if item.get("error") else ABORTED if item.get("unfinished") else note.skip_reason
        if any(map(_is_of_added_agent, content)):
            note.skip_reason = note.skip_reason or PARALLEL  # the user's reaction may be to the other reply
        if isinstance(feedback, dict):
            tag = feedback.get("tag")
            add_feedback(note, [{"score": feedback.get("rating"), "comment": feedback.get("text"),
                                 "label": tag.get("key") if isinstance(tag, dict) else tag}])  # fmt: skip
    return node


def _is_of_added_agent(part: Any) -> bool:
    """Return True for a part by an agent that answered beside the main one. The next prompt does not hold it."""
    return isinstance(part, dict) and "groupId" in part and "____" in (first_text(part.get("agentId")) or "")


def _convert_part(part: Any) -> list[Any]:
    """Return a part of a reply as blocks: text, thinking, a call and its result, or what the user said meanwhile."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _NOT_READ:
        return []
    call = part.get("tool_call") if kind == "tool_call" else None
    if isinstance(call, dict):
        body = call["function"] if isinstance(call.get("function"), dict) else call
        arguments = body.get("args", body.get("arguments"))
        use = {"type": "tool_use", "id": call.get("id"), "name": body.get("name", call.get("type")), "input": arguments}
        return [use, {"type": "tool_result", "tool_use_id": call.get("id"), "content": body.get("output")}]
    if kind not in ("text", "think", "error"):
        return [part]
    value = part.get(kind, part.get("text"))
    value = value.get("value") if isinstance(value, dict) else value
    of_kind = "thinking" if kind == "think" else "text"
    return [{"type": of_kind, of_kind: value}]


READER = make_tree_reader("librechat", recognises, lambda record: first_text(record.get("conversationId")), read_record,
                     closer_than=("openai",))  # fmt: skip
