"""Stored completions of OpenAI: those made with `store: true`, as `GET /v1/chat/completions` lists them.

https://platform.openai.com/docs/api-reference/chat/list. The prompts come from another endpoint; the log must hold each
prompt in its completion, under `messages` or `input`.
"""

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.chat.messages import first_text, read_messages, read_tools
from opdkit.extract.formats.chains import Call, call_reader, read_reply, require_prompt
from opdkit.extract.formats.spans import drop_empty

_COMPLETION = "chat.completion"
_KEPT = ("id", "request_id", "created", "metadata", "input_user", "service_tier", "temperature", "usage")


def recognises(record: JSON) -> bool:
    """Return whether the record is a completion with the fields of a stored one, or a page of them."""
    page = record.get("data")
    if record.get("object") == "list" and isinstance(page, list) and page:
        return isinstance(page[0], dict) and page[0].get("object") == _COMPLETION
    return record.get("object") == _COMPLETION and ("metadata" in record or "request_id" in record)


def unfold(record: JSON) -> list[JSON]:
    """Return the completions of a page; any other record as a list of one. Raises Unreadable."""
    page = record.get("data")
    if record.get("object") != "list" or not isinstance(page, list):
        return [record]
    if not all(isinstance(row, dict) for row in page):
        raise Unreadable("page of unknown shape", "a list of objects is needed")
    return page or [record]


def read_call(record: JSON) -> Call:
    """Read one completion. Raises Unreadable."""
    items = record.get("messages") or record.get("input")
    if isinstance(items, dict):  # a page of messages, as the API returns it
        items = items.get("data")
    items = require_prompt(items, "the list has no prompt; docs/logs.md shows how to fetch it")
    # A message of several parts has them in `content_parts`.
    prompt, _ = read_messages([
        item | {"content": item["content_parts"]} if isinstance(item, dict) and item.get("content_parts") else item
        for item in items
    ])  # fmt: skip
    reply, note = read_reply(record)
    logged = drop_empty({key: record.get(key) for key in _KEPT})
    model, tools = first_text(record.get("model")), read_tools(record.get("tools"))
    return Call(prompt, reply, note, model=model, tools=tools, logged=logged)


READER = call_reader("openai_stored", recognises, read_call, unfold=unfold, closer_than=("openai",))
