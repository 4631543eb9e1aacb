"""Conversations of the export of Claude.ai (`conversations.json`), one per record and `uuid`.

Messages form a tree by `parent_message_uuid`. Older exports lack that field: each message follows the one before.
"""

from dataclasses import replace
from typing import Any

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.chat.messages import as_list, first_text, read_messages, require_list
from opdkit.extract.formats.sessions import split_blocks
from opdkit.extract.formats.trees import Node, Tree, find_object, make_tree_reader
from opdkit.store.skip_reasons import ABORTED

_ROLES = {"human": "user", "assistant": "assistant"}
_ROOT = "00000000-0000-4000-8000-000000000000"  # the parent of the first message


def recognises(record: JSON) -> bool:
    """Return whether the record is a conversation with its messages."""
    return "uuid" in record and isinstance(record.get("chat_messages"), list)


def read_record(record: JSON) -> Tree:
    """Read a conversation. Raises Unreadable."""
    items = record.get("chat_messages")
    items = [] if items == [] else require_list(items, "chat_messages")
    is_tree = any(isinstance(item, dict) and item.get("parent_message_uuid") for item in items)
    metadata = {key: value for key, value in record.items() if key not in ("chat_messages", "model")}
    tree = Tree(metadata=metadata, model=first_text(record.get("model")), time=record.get("updated_at"))
    above: str | None = None
    for number, item in enumerate(items):
        name = first_text(find_object(item).get("uuid")) or f"#{number}"
        with tree.setting_aside(name, item):
            node = _read_node(item, name)
            tree.nodes.append(node if is_tree else replace(node, parent=above))
        above = name
    tree.current = first_text(record.get("current_leaf_message_uuid")) or (tree.nodes[-1].id if tree.nodes else None)
    return tree


def _read_node(item: Any, name: str) -> Node:
    """Return a message as the node with the id `name`. Raises Unreadable."""
    role = _ROLES.get(str(item.get("sender"))) if isinstance(item, dict) else None
    if role is None:
        sender = item.get("sender") if isinstance(item, dict) else type(item).__name__
        raise Unreadable("unknown role", f"it is from {str(sender)[:100]!r}")
    blocks = item.get("content")
    # `token_budget` says how much context is left and is not part of the reply. A voice note holds its transcript.
    blocks = [block | {"type": "text"} if find_object(block).get("type") == "voice_note" else block
              for block in as_list(blocks) if find_object(block).get("type") != "token_budget"]  # fmt: skip
    if not blocks:
        blocks = [{"type": "text", "text": first_text(item.get("text")) or ""}]
    if role == "assistant":
        messages, notes = read_messages(split_blocks(map(_convert_texts, blocks)))
    else:
        attached = [a.get("extracted_content") for a in as_list(item.get("attachments")) if isinstance(a, dict)]
        texts = [{"type": "text", "text": text} for text in attached if isinstance(text, str) and text]
        files = [{"type": "file"} for _ in as_list(item.get("files"))]
        messages, notes = read_messages([{"role": role, "content": [*texts, *files, *blocks]}])
    parent = first_text(item.get("parent_message_uuid"))
    node = Node(name, None if parent == _ROOT else parent, messages, notes)
    note = node.last_note
    if note is not None:
        note.finish_reason = first_text(item.get("stop_reason"))
        note.skip_reason = ABORTED if note.finish_reason == "user_canceled" else note.skip_reason
    return node


def _convert_texts(block: Any) -> Any:
    """Return a block. If its content is a list, such as search results, parts that have a text become plain texts."""
    parts = block.get("content") if isinstance(block, dict) else None
    if not isinstance(parts, list):
        return block
    return block | {"content": [{"text": part["text"]} if isinstance(part, dict) and "text" in part else part
                                for part in parts]}  # fmt: skip


READER = make_tree_reader("claude_ai", recognises, lambda record: first_text(record.get("uuid")), read_record)
