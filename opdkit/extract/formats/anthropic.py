"""Calls of Anthropic's Messages API: one conversation per line, its content in blocks.

    {"model", "system", "messages": [{"role", "content": text or blocks}], "tools", ...}

Blocks and fields as in https://docs.anthropic.com/en/api/messages. The reply may be logged beside the request, under
one of RESPONSES or as the fields of a response (`role`, `content`, `stop_reason`). The request may be a batch item.
"""

from opdkit.chat.conversation import JSON, Conversation, Note
from opdkit.chat.messages import find_key, first_text, read_messages, read_tools, require_list
from opdkit.extract.formats.openai import (
    RESPONSES,
    find_holder_of_choices,
    find_reply_beside,
    parse_columns,
    split_steps,
)
from opdkit.extract.formats.reader import Line
from opdkit.extract.formats.sessions import line_reader

_ENVELOPES = ("request", "body", "params")
_OWN_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use", "document")
_OF_REQUEST = frozenset(("model", "system", "messages", "tools"))
_OF_RESPONSE = frozenset(("role", "content", "type", "stop_reason"))
_LOOKED_AT = 12  # messages


def recognises(record: JSON) -> bool:
    """Return whether messages come with a separate system prompt, or with blocks or a response of this API alone."""
    record = parse_columns(record)
    request, response, _ = _split_call(record)
    if find_key(request, ("messages",)) is None or "response_text" in record:
        return False
    if "choices" in record or find_holder_of_choices(record):  # the reply of another API
        return False
    if isinstance(response.get("content"), list) and ("stop_reason" in response or response.get("type") == "message"):
        return True
    head = request["messages"][:_LOOKED_AT]
    if isinstance(request.get("system"), (str, list)) and all(
        isinstance(item, dict) and item.get("role") in ("user", "assistant") for item in head
    ):
        return True
    contents = [item["content"] for item in head if isinstance(item, dict) and isinstance(item.get("content"), list)]
    blocks = [block for content in contents for block in content if isinstance(block, dict)]
    return any(b.get("type") in _OWN_BLOCKS or (b.get("type") == "image" and "source" in b) for b in blocks)


def _split_call(record: JSON) -> tuple[JSON, JSON, frozenset[str]]:
    """Return (request, response, fields that hold the response) of a record.

    Either may be the record itself. A response without `content` is an error or a verdict, and returned as {}.
    """
    request = record
    if "messages" not in record:
        envelopes = (record.get(key) for key in _ENVELOPES)
        request = next((e for e in envelopes if isinstance(e, dict) and "messages" in e), record)
    for key in RESPONSES:
        response = record.get(key)
        for envelope in ("message", "body"):
            response = response.get(envelope, response) if isinstance(response, dict) else None
        if isinstance(response, dict) and "content" in response:
            return request, response, frozenset((key,))
    if record.get("role") == "assistant" and "content" in record:
        return request, record, _OF_RESPONSE
    return request, {}, frozenset()


def read_record(line: Line, record: JSON) -> list[Conversation]:
    """Read one call: system prompt, messages and reply. All other parameters go to the metadata."""
    record = parse_columns(record)
    request, response, used = _split_call(record)
    items = [message for item in require_list(request.get("messages"), "messages") for message in split_steps(item)]
    system = request.get("system")
    opening = [{"role": "system", "content": system}] if system else []
    reply = [{"role": "assistant", "content": response.get("content")}]
    field, replies = (None, reply) if response else find_reply_beside(record, items)
    messages, notes = read_messages([*opening, *items, *replies], first=-len(opening))
    if response:
        notes.setdefault(len(messages) - 1, Note()).finish_reason = first_text(response.get("stop_reason"))
    metadata = {} if request is record else {k: v for k, v in request.items() if k not in _OF_REQUEST}
    metadata |= {k: v for k, v in record.items() if k not in _OF_REQUEST | used | {field} and v is not request}
    if "usage" in response:
        metadata["usage"] = response["usage"]
    model = first_text(request.get("model"), response.get("model"), record.get("model"))
    tools = read_tools(request.get("tools"))
    return [Conversation(line.source, line.number, messages, model, tools, metadata, notes)]


READER = line_reader("anthropic", recognises, read_record, closer_than=("openai",))
