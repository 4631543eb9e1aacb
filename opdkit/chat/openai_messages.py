"""Messages in OpenAI's form, which chat templates and trainers read. No tokenizer here.

opdkit renders its own prompts from this form and exports it, so a trainer that reads an export sees the same prompts.
"""

import json
import re
from typing import Any

Message = dict[str, Any]


def openai_message(message: Message, *, arguments_as_text: bool = False, short_ids: bool = False) -> Message:
    """Convert a `message` of tables.toml to OpenAI's form, without empty keys except `content`.

    With `short_ids`, ids of calls have nine letters and digits: the last ones of a longer id, as in vLLM.
    """
    converted: Message = {"role": message["role"], "content": message["content"] or ""}
    if message.get("reasoning"):  # the first name is the usual one, then Solar's and gpt-oss's
        converted |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), message["reasoning"])
    converted |= {key: message[key] for key in ("name", "tool_call_id") if message.get(key)}
    if short_ids and "tool_call_id" in converted:
        converted["tool_call_id"] = _shorten(converted["tool_call_id"])
    calls = []
    for call in message.get("tool_calls") or []:
        text = "{}" if call["arguments"].strip() in ("", "null") else call["arguments"]  # a call without arguments
        parsed = None if arguments_as_text else _parse(text)
        function = {"name": call["name"], "arguments": parsed if isinstance(parsed, dict) else text}
        name = _shorten(call["id"]) if short_ids else call["id"]
        calls.append({"id": name, "type": "function", "function": function})
    return converted | ({"tool_calls": calls} if calls else {})


def read_tool_definitions(tools: str | None) -> list[Message] | None:
    """Return logged tools, which are JSON, as templates expect them (OpenAI's wrapped form); None if unusable."""
    parsed = _parse(tools) if tools else None
    definitions = [parsed] if isinstance(parsed, dict) else parsed
    if not isinstance(definitions, list) or not all(isinstance(d, dict) for d in definitions):
        return None
    for n, flat in enumerate(definitions):
        if "name" in flat and "function" not in flat:  # OpenAI's Responses, Anthropic's: keep what servers pass on
            flat["parameters"] = flat.get("parameters", flat.get("input_schema", flat.get("inputSchema")))
            fields = [key for key in ("name", "description", "parameters", "strict") if flat.get(key) is not None]
            definitions[n] = {"type": "function", "function": {key: flat[key] for key in fields}}
    return definitions or None


def merge_messages(messages: list[Message]) -> Message:
    """Return text messages merged into one user message, for a template that takes no system message."""
    return {"role": "user", "content": "\n\n".join(m["content"] for m in messages)}


def _shorten(call_id: str) -> str:
    return re.sub(r"\W|_", "", call_id)[-9:].rjust(9, "0")


def _parse(text: str) -> Any:
    """Return the value of JSON text, with U+FFFD for lone surrogates, which no tokenizer takes; None if unusable."""
    try:
        value = json.loads(text)
        if "\\ud" in text.lower():
            value = json.loads(re.sub("[\ud800-\udfff]", "\ufffd", json.dumps(value, ensure_ascii=False)))
        return value
    except (ValueError, RecursionError):
        return None
