"""Items of OpenAI's Responses API, which Codex logs one by one and other logs hold in a list `output`.

A reply is several items: reasoning, texts and calls. https://platform.openai.com/docs/api-reference/responses
"""

from collections.abc import Sequence
from typing import Any

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.chat.messages import dump

# Notes of the client and the server, which are not part of the conversation.
_NO_MESSAGE = ("ghost_snapshot", "compaction", "compaction_summary", "context_compaction", "compaction_trigger",
               "mcp_list_tools", "additional_tools")  # fmt: skip
_CALLS = {"function_call": "arguments", "custom_tool_call": "input", "local_shell_call": "action",
          "tool_search_call": "arguments"}  # fmt: skip


def is_call(item: JSON) -> bool:
    """Return whether an item is a tool call or the result of one."""
    kind = item.get("type")
    return isinstance(kind, str) and kind.removesuffix("_output") in _CALLS and "call_id" in item


def has_items(items: Sequence[Any]) -> bool:
    """Return whether a prompt consists of items of the Responses API."""
    return any(isinstance(m, dict) and (m.get("type") in ("message", "reasoning") or is_call(m)) for m in items)


def openai_messages(items: Sequence[Any]) -> list[JSON]:
    """Return items as messages of the Chat Completions API; drop notes of client and server. Raises Unreadable."""
    for item in items:
        if not isinstance(item, dict):
            raise Unreadable("item of unknown shape", f"it is a {type(item).__name__}")
    return [_read_item(item) for item in items if item.get("type") not in _NO_MESSAGE]


def _read_item(item: JSON) -> JSON:
    """Return an item as a message of the Chat Completions API. Raises Unreadable."""
    kind = item.get("type")
    if kind == "message" or (kind is None and "role" in item):
        return {"role": item.get("role"), "content": item.get("content")}
    if kind == "agent_message":  # from another agent to this one
        said = item.get("content") or [{"type": "encrypted_content"}]
        return {"role": "user", "content": said, "name": item.get("author")}
    if kind == "reasoning":
        return {"role": "assistant", "content": [item]}
    if not isinstance(kind, str):
        raise Unreadable("unknown item", f"an item of type {str(kind)[:100]!r}")
    call_id = item.get("call_id") or item.get("id")
    if kind in _CALLS:
        name = item.get("name", kind.removesuffix("_call"))
        return {"role": "assistant", "content": None,
                "tool_calls": [{"id": call_id, "name": name, "arguments": item.get(_CALLS[kind])}]}  # fmt: skip
    if kind.endswith("_output"):
        output = item.get("output", item.get("tools"))
        if isinstance(output, dict) and isinstance(output.get("content"), str):
            output = output["content"]  # a failed call, as older clients log it
        is_text = isinstance(output, (str, list)) and kind != "tool_search_output"
        return {"role": "tool", "tool_call_id": call_id, "content": output if is_text else dump(output)}
    if kind.endswith("_call"):  # a web search or an image, which the server ran within the reply
        return {"role": "assistant", "content": [{"type": kind}]}
    raise Unreadable("unknown item", f"an item of type {kind[:100]!r}")
