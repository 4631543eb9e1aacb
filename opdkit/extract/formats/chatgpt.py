"""ChatGPT's data export: `conversations.json`, an array of trees, and `message_feedback.json`, their ratings.

    {"conversation_id": ..., "current_node": ..., "mapping": {ID: {"parent": ..., "message": {...}}, ...}}
    {"id": MESSAGE, "conversation_id": ..., "rating": "thumbs_up", "content": "{\\"tags\\": [], \\"text\\": ...}"}

OpenAI does not document the format; this follows the types of pionxzh/chatgpt-exporter and published exports.
"""

from typing import Any

import orjson

from opdkit.chat.conversation import JSON, Note, Unreadable
from opdkit.chat.messages import NOT_ONLY_TEXT, ROLES, as_list, dump, first_text, join_content, message
from opdkit.extract.formats.spans import drop_empty
from opdkit.extract.formats.trees import Node, Tree, find_object, make_tree_reader, read_parent
from opdkit.extract.mapping import value_at
from opdkit.store.skip_reasons import ABORTED

_RATINGS = {"thumbs_up": 1, "thumbsUp": 1, "thumbs_down": -1, "thumbsDown": -1}
_LEFT_OUT = ("mapping", "current_node", "moderation_results", "safe_urls", "blocked_urls")
_TEXTS = ("text", "result", "content", "model_set_context")  # fields that may hold the text of content without parts


def recognises(record: JSON) -> bool:
    """Return whether the record is a conversation with its tree, or the rating of a message."""
    if "mapping" in record:
        return isinstance(record["mapping"], dict) and ("current_node" in record or "conversation_id" in record)
    return "conversation_id" in record and isinstance(record.get("rating"), str) and record["rating"] in _RATINGS


def id_of(record: JSON) -> str | None:
    return first_text(record.get("conversation_id"), record.get("id"))


def read_record(record: JSON) -> Tree:
    """Read a conversation, or the rating of a message. Raises Unreadable."""
    mapping = record.get("mapping")
    if isinstance(mapping, dict):
        metadata = drop_empty({key: value for key, value in record.items() if key not in _LEFT_OUT})
        current, model = (first_text(record.get(key)) for key in ("current_node", "default_model_slug"))
        tree = Tree([], current, metadata, model, time=record.get("update_time"))
        for name, node in mapping.items():
            with tree.setting_aside(name, node):
                tree.nodes.append(_read_node(name, node))
        return tree
    name, rating = first_text(record.get("message_id"), record.get("id")), record.get("rating")
    if name is None or not isinstance(rating, str) or rating not in _RATINGS:
        raise Unreadable("no messages", "neither a conversation nor the rating of a message")
    text = first_text(record.get("content"))
    try:
        said = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        said = {"text": text}
    said = said if isinstance(said, dict) else {}
    tags = [tag for tag in as_list(said.get("tags")) if isinstance(tag, str)]
    comment = first_text(said.get("text"), record.get("text"))
    time = record.get("update_time") or record.get("create_time")
    return Tree(ratings={name: {"rating": _RATINGS[rating], "comment": comment, "tags": tags}}, time=time, is_copy=True)


def _read_node(name: str, node: Any) -> Node:
    """Return a node of the mapping. Raises Unreadable."""
    if not isinstance(node, dict):
        raise Unreadable("message is not an object", f"it is a {type(node).__name__}")
    result, logged = Node(name, read_parent(node.get("parent"))), node.get("message")
    if logged is None:
        return result
    author, content, metadata = (
        logged.get(key) or {} if isinstance(logged, dict) else None for key in ("author", "content", "metadata")
    )
    if not isinstance(author, dict) or not isinstance(content, dict) or not isinstance(metadata, dict):
        raise Unreadable("message of unknown shape", "author, content or metadata are not objects")
    kind, logged_role = content.get("content_type"), author.get("role")
    role = ROLES.get(logged_role) if isinstance(logged_role, str) else None
    if role is None:
        raise Unreadable("unknown role", f"it has role {str(logged_role)[:100]!r}")
    if kind in ("user_editable_context", "model_editable_context"):
        role = "system"
    hidden = metadata.get("is_visually_hidden_from_conversation") is True
    text, only_text = _read_text(content, role)
    custom = find_object(metadata, "user_context_message_data")  # instructions; older exports have them only here
    if not text and role == "system":
        text = "\n".join(filter(None, map(first_text, map(custom.get, ("about_user_message", "about_model_message")))))
    recipient = first_text(logged.get("recipient")) or "all"
    # Empty messages are states of the page while a tool runs: no model reads them.
    is_state = not text and (hidden or role == "system" or (role == "assistant" and recipient == "all"))
    if kind == "reasoning_recap" or is_state or (role == "tool" and metadata.get("command") == "spinner"):
        return result
    result.machine = hidden
    if role == "user":
        kinds = (item.get("mimeType", item.get("mime_type")) for item in as_list(metadata.get("attachments"))
                 if isinstance(item, dict))  # fmt: skip
        # Images are also parts of the message, so they are not added a second time.
        files = [{"type": "file", "source": {"media_type": x}} for x in kinds if not str(x).startswith("image/")]
        text = join_content([*files, text] if text else files) or ""
    if role != "assistant":
        result.messages = [message(role, text, name=first_text(author.get("name")))]
        return result
    result.model = first_text(metadata.get("model_slug"))
    if kind == "thoughts":
        result.messages = [message(role, None, reasoning=text)] if text else []
    elif recipient != "all":
        result.messages = [message(role, None, tool_calls=[{"id": "", "name": recipient, "arguments": text}])]
    else:
        result.messages = [message(role, text)]
    note = Note(first_text(value_at(metadata, ("finish_details", "type"))))
    if note.finish_reason == "interrupted" or logged.get("status") in ("in_progress", "finished_partial_completion"):
        note.skip_reason = ABORTED
    elif not only_text:
        note.skip_reason = NOT_ONLY_TEXT
    result.notes = {0: note} if result.messages else {}
    return result


def _read_text(content: JSON, role: str) -> tuple[str, bool]:
    """Return (text of a message's content, True if no placeholder stands for a part of it). Raises Unreadable."""
    kind, parts = first_text(content.get("content_type")) or "text", content.get("parts")
    if kind == "thoughts" and isinstance(content.get("thoughts"), list):
        thoughts = [thought for thought in content["thoughts"] if isinstance(thought, dict)]
        pieces = [first_text(thought.get("content"), thought.get("summary")) for thought in thoughts]
        return "\n".join(filter(None, pieces)), True
    if kind == "user_editable_context":
        pieces = [first_text(content.get("user_profile")), first_text(content.get("user_instructions"))]
        return "\n".join(filter(None, pieces)), True
    if isinstance(parts, list) and kind in ("text", "multimodal_text"):
        items = [_read_part(part) for part in parts if part is not None]
        return join_content(items) or "", all(isinstance(item, str) for item in items)
    texts = [content[key] for key in _TEXTS if isinstance(content.get(key), str)]
    if texts or kind in ("text", "multimodal_text", "code", "model_editable_context"):
        return first_text(*texts) or "", True
    return (dump(content), True) if role == "tool" else (join_content([{"type": kind}]) or "", False)


def _read_part(part: Any) -> Any:
    """Return a part as join_content reads it: its text (or its transcript of speech), or an object with its type."""
    if not isinstance(part, dict) or isinstance(part.get("text"), str):
        return part["text"] if isinstance(part, dict) else part
    kind = first_text(part.get("content_type")) or ""
    return {"type": kind.removesuffix("_asset_pointer").removeprefix("real_time_user_")}


READER = make_tree_reader("chatgpt", recognises, id_of, read_record)
