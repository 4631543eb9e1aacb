"""Calls of Anthropic's Messages API: one conversation a line, its content in blocks.

    {"model", "system", "messages": [{"role", "content": text or blocks}], "tools", ...}

Blocks and fields as https://docs.anthropic.com/en/api/messages names them. The reply may stand beside the request, as
`response` or as the fields of a response (`role`, `content`, `stop_reason`); the request may stand under `request`,
`body` or `params` (as in a message batch). Results of tools, which are blocks of a user message, become messages of
role tool; thinking becomes the reply's reasoning; images and documents leave a placeholder.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import flatten, message, read_messages, read_tools
from opdkit.extract.formats.json_lines import one_by_one
from opdkit.extract.formats.reader import Line, Reader, Rejected

_ENVELOPES = ("request", "body", "params")
_REPLIES = ("response", "output", "result")
_OWN_BLOCKS = frozenset(("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use", "document"))
_OF_REQUEST = frozenset(("model", "system", "messages", "tools"))
_LOOKED_AT = 12  # messages


def recognises(record: JSON) -> bool:
    """Messages beside a system prompt of their own, or with blocks or a response that only this interface has."""
    request = _request(record)
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], dict):
        return False
    if "role" not in messages[0] or "response_text" in record:
        return False
    head = messages[:_LOOKED_AT]
    apart = isinstance(request.get("system"), (str, list)) and all(_role(m) in ("user", "assistant") for m in head)
    return apart or _is_response(_response(record)) or any(_has_own_block(m) for m in head)


def _role(item: Any) -> Any:
    return item.get("role") if isinstance(item, dict) else None


def _has_own_block(item: Any) -> bool:
    content = item.get("content") if isinstance(item, dict) else None
    return isinstance(content, list) and any(
        isinstance(block, dict)
        and (block.get("type") in tuple(_OWN_BLOCKS) or (block.get("type") == "image" and "source" in block))
        for block in content
    )


def _request(record: JSON) -> JSON:
    """Where the request is: the record itself, or what it wraps."""
    if "messages" not in record:
        for key in _ENVELOPES:
            if isinstance(record.get(key), dict) and "messages" in record[key]:
                inner: JSON = record[key]
                return inner
    return record


def _response(record: JSON) -> JSON:
    """The reply that was logged with the request; {} where there is none."""
    for key in _REPLIES:
        found = record.get(key)
        if isinstance(found, dict):
            found = found.get("message", found)
            found = found.get("body", found) if isinstance(found, dict) else None
            return found if isinstance(found, dict) else {}
    return record if record.get("role") == "assistant" and "content" in record else {}


def _is_response(response: JSON) -> bool:
    return isinstance(response.get("content"), list) and (
        "stop_reason" in response or response.get("type") == "message"
    )


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """One line, one conversation."""
    return one_by_one(unit, _conversation)


def _conversation(line: Line, record: JSON) -> Conversation:
    request, response = _request(record), _response(record)
    items = request.get("messages")
    if not isinstance(items, list) or not items:
        raise Unreadable("no messages", f"messages is {'empty' if items == [] else 'a ' + type(items).__name__}")
    system = request.get("system")
    opening = [message("system", flatten(system))] if system else []
    if response:
        items = [*items, {"role": "assistant", "content": response.get("content")}]
    messages, notes = read_messages(items)
    if response:
        note = notes.setdefault(len(messages) - 1, Note())
        finish = response.get("stop_reason")
        note.finish_reason = finish if isinstance(finish, str) else None
    model = next((m for m in (request.get("model"), response.get("model"), record.get("model"))
                  if isinstance(m, str) and m), None)  # fmt: skip
    return Conversation(
        line.source,
        line.number,
        opening + messages,
        model=model,
        tools=read_tools(request.get("tools")),
        metadata=_metadata(record, request, response),
        notes={index + len(opening): note for index, note in notes.items()},
    )


def _metadata(record: JSON, request: JSON, response: JSON) -> JSON:
    """What was logged beside the conversation. The parameters of the request are among it."""
    own = _OF_REQUEST | ({"role", "content", "type", "stop_reason"} if response is record else set())
    outer = {k: v for k, v in record.items() if k not in own and v is not request and v is not response}
    if response and response is not record:
        outer = {k: v for k, v in outer.items() if k not in _REPLIES} | (
            {"usage": response["usage"]} if "usage" in response else {})  # fmt: skip
    inner = {k: v for k, v in request.items() if k not in _OF_REQUEST} if request is not record else {}
    return inner | outer


READER = Reader("anthropic", "line", recognises, read, closer_than="openai")
