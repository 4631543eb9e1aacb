"""OpenAI chat messages: one conversation per line, under `messages`, `trajectory` and other names."""

from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import as_list, find_key, first_choice, first_text, read_messages, read_tools, require_list
from opdkit.extract.formats.reader import Line
from opdkit.extract.formats.sessions import line_reader
from opdkit.extract.formats.spans import parse_text
from opdkit.extract.mapping import value_at

KEYS = ("messages", "traj", "history", "conversation", "conversations", "trajectory")
_OWN_COLUMNS = frozenset(("model", "system", "tools", "functions", "choices"))
RESPONSES = ("response", "output", "result")  # fields that may hold the response of an API
_SHOWN_BY_GOOSE = ("toolConfirmationRequest", "actionRequired", "systemNotification", "redactedThinking")


def recognises(record: JSON) -> bool:
    """Return whether the record has a list of objects with a role, and no reply in `response_text` beside it."""
    return "response_text" not in record and find_key(parse_columns(record), KEYS) is not None


def parse_columns(record: JSON) -> JSON:
    """Return the record with its messages and its response parsed if they are JSON text, as in a column of a table."""
    texts = [key for key in (*KEYS, *RESPONSES, "choices") if isinstance(record.get(key), str)]
    parsed = ((key, parse_text(record[key])) for key in texts)
    return record | {key: value for key, value in parsed if key in KEYS or _is_response(key, value)}


def _is_response(key: str, value: Any) -> bool:
    """Return whether a field is a response of an API or its choices, and not a reply that happens to be JSON."""
    is_reply = "assistant" in (value_at(value, ("role",)), value_at(value, ("message", "role")))
    choices = value if key == "choices" else value_at(value, ("choices",))
    return is_reply or isinstance(value_at(choices, (0, "message")), dict)


def read_record(line: Line, record: JSON) -> list[Conversation]:
    """Read one conversation. A `system` prompt beside it becomes the first message, a call's reply the last one."""
    record = parse_columns(record)
    key = find_key(record, KEYS) or next((k for k in KEYS if k in record), None)
    if key is None:
        raise Unreadable("no messages", f"none of {', '.join(KEYS)} in the record")
    items = [message for item in require_list(record[key], key) for message in split_steps(item)]
    if "working_dir" in record and all(isinstance(value_at(item, ("content",)), list) for item in items):
        items = require_list(join_goose(items), key)
    system, holder = record.get("system"), find_holder_of_choices(record)
    has_system = value_at(items, (0, "role")) in ("system", "developer")
    opening = [{"role": "system", "content": system}] if system and not has_system else []
    response, (field, replies) = record[holder] if holder else {}, find_reply_beside(record, items)
    messages, notes = read_messages([*opening, *items, *replies], first=-len(opening))
    for index, message in enumerate(messages if record.get("turn_type") == "side" else ()):
        if message["role"] == "assistant":
            notes.setdefault(index, Note()).kind = "side"
    models = (source.get("model") for source in (record, *record[key], response))
    model = first_text(*models, value_at(record, ("model_config", "model_name")))
    tools = read_tools(record.get("tools") or record.get("functions"))
    metadata = {k: v for k, v in record.items() if k not in (key, field) and k not in _OWN_COLUMNS}
    if holder:
        metadata[holder] = {k: v for k, v in response.items() if k != "choices"}
    return [Conversation(line.source, line.number, messages, model, tools, metadata, notes)]


def join_goose(items: list[Any]) -> list[Any]:
    """Return a Goose session as its model saw it: each reply, stored call by call, joined, then its tool results."""
    messages, reply = list[Any](), {"content": list[Any]()}
    for item in items:
        content = [block for part in item["content"] for block in _convert_goose(part)]
        own = {"turn_type": "side"} if value_at(item, ("metadata", "userVisible")) is False else {}  # Goose's own
        is_reply = item.get("role") == "assistant" and not own
        is_copy = any(value_at(block, ("type",)) == "thinking" and block in reply["content"] for block in content)
        if value_at(item, ("metadata", "agentVisible")) is False:
            reply = {"content": []}
        elif is_reply and (is_copy or messages[-1:] == [reply]):
            reply["content"] += [block for block in content if block not in reply["content"]]
        elif content:
            messages.append(item | own | {"content": content})
            reply = messages[-1] if is_reply else reply
    return messages


def _convert_goose(part: Any) -> list[Any]:
    """Return a part of a Goose message as a list of Anthropic's blocks; an empty list if the model does not see it."""
    audience, text = as_list(value_at(part, ("annotations", "audience"))), value_at(part, ("resource", "text"))
    call, result = value_at(part, ("toolCall", "value")), value_at(part, ("toolResult",))
    if value_at(part, ("type",)) in _SHOWN_BY_GOOSE or (audience and "assistant" not in audience):
        return []
    if isinstance(call, dict):
        return [{"type": "tool_use", "id": part.get("id")} | call]
    if isinstance(result, dict):
        parts = value_at(result, ("value", "content")) or result.get("value")  # older versions: the list itself
        made: Any = [block for own in as_list(parts) for block in _convert_goose(own)]
        made = f"The tool call returned the following error:\n{result['error']}" if "error" in result else made
        return [{"type": "tool_result", "tool_use_id": part.get("id"), "content": made}]
    return [part if text is None else {"type": "text", "text": text}]


def split_steps(item: Any) -> list[Any]:
    """Return a message of the AI SDK's `useChat` as the model saw it: each step of a reply, then its calls' results.

    Parts that only the client shows (sources, data) are left out. Any other message is returned unchanged.
    """
    calls = [{"type": "tool-invocation", "toolInvocation": c} for c in as_list(value_at(item, ("toolInvocations",)))]
    parts: Any = value_at(item, ("parts",)) or (calls and [*calls, {"type": "text", "text": item.get("content") or ""}])
    if not parts or not isinstance(parts, list) or not all(isinstance(value_at(p, ("type",)), str) for p in parts):
        return [item]
    has_starts = any(part["type"] == "step-start" for part in parts)
    step: JSON = {"role": item.get("role"), "content": []}
    steps, results, number = [step], list[JSON](), None
    for part in parts:
        kind, call = part["type"], part.get("toolInvocation", part)
        is_call = isinstance(value_at(call, ("toolCallId",)), str)
        own = call.get("step", 0) if is_call else None  # the number of its step, in version 4
        if step["content"] and (kind == "step-start" or (results and not has_starts and own != number)):
            step, number = {"role": item.get("role"), "content": []}, None
            steps += [*results, step]
            results = []
        if part.get("state") == "streaming":
            step["finish_reason"] = "aborted"
        if is_call:
            number = own
            results += _add_call(step["content"], call, call.get("toolName") or kind.removeprefix("tool-"))
        elif kind == "file":
            step["content"].append(part | {"source": {"media_type": part.get("mediaType", part.get("mimeType"))}})
        elif kind not in ("step-start", "source", "reasoning-file") and not kind.startswith(("source-", "data-")):
            step["content"].append(part)
    step |= {"decision": item["decision"]} if "decision" in item else {}
    return [message for message in [*steps, *results] if message["content"] or message is steps[0]]


def _add_call(content: list[JSON], call: JSON, name: str) -> list[JSON]:
    """Add a call of `useChat` to the content of its step. Return its result, a list of at most one message."""
    if call.get("providerExecuted"):
        content.append({"type": "server_tool_use"})
    if call.get("providerExecuted") or call.get("state") in ("input-streaming", "partial-call"):
        return []
    named = {"toolCallId": call["toolCallId"], "toolName": name}
    content.append({"type": "tool-call", "input": call.get("input", call.get("args"))} | named)
    values = [call[key] for key in ("output", "result", "errorText") if key in call]
    if call.get("state") == "output-denied":
        values = [value_at(call, ("approval", "reason")) or "Tool execution denied."]
    blocks = [{"type": "tool-result", "output": {"type": "json", "value": value}} | named for value in values[:1]]
    return [{"role": "tool", "content": blocks}] if blocks else []


def find_holder_of_choices(record: JSON) -> str | None:
    """Return the field whose response has choices; None if there is none, or if the record itself has choices."""
    fields = (name for name in RESPONSES if value_at(record, (name, "choices", 0)))
    return None if "choices" in record else next(fields, None)


def find_reply_of_choices(record: JSON) -> list[JSON]:
    """Return the reply in the choices of a record or of its response, as a list of at most one logged message."""
    holder = find_holder_of_choices(record)
    choice = first_choice((record[holder] if holder else record).get("choices"))
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        return []
    logged_beside = {k: v for k, v in choice.items() if k != "message"}  # finish reason, log-probs
    return [{"role": "assistant", **logged_beside, **choice["message"]}]


def find_reply_beside(record: JSON, items: list[Any]) -> tuple[str | None, list[JSON]]:
    """Return (field, reply) of the reply logged beside its messages, as a list of at most one; no field of choices.

    Beside messages that do not end with a reply, it may also be a message in one of RESPONSES, or a text in `response`.
    """
    replies = find_reply_of_choices(record)
    if replies or value_at(items, (-1, "role")) == "assistant":
        return None, replies
    for field in RESPONSES:
        said = value_at(record, (field, "message"))
        said = said if isinstance(said, dict) else record.get(field)
        if field == "response" and said and isinstance(said, str):
            said = {"role": "assistant", "content": said}
        if isinstance(said, dict) and said.get("role") == "assistant":
            names = ("finish_reason", "stop_reason", "done_reason")  # OpenAI, Anthropic, Ollama
            reasons = (value_at(record, (*path, name)) for path in ((field,), ()) for name in names)
            return field, [{"finish_reason": first_text(*reasons)} | said]
    return None, []


READER = line_reader("openai", recognises, read_record)
