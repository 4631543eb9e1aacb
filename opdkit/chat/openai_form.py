"""Messages in OpenAI's form, which chat templates and trainers read; and the words around a hint. No tokenizer here.

opdkit renders its own prompts from this form and exports it, so a trainer that reads an export sees the same prompts.
"""

import json
from typing import Any

Message = dict[str, Any]

HINT_HEADER = "[user's hint / instruction]"


def openai_message(message: Message, *, arguments_as_text: bool = False) -> Message:
    """A row of tables.MESSAGE in OpenAI's form, without keys that say nothing."""
    said: Message = {"role": message["role"], "content": message["content"] or ""}
    if message.get("reasoning"):
        # The one name is the usual one, the other gpt-oss's.
        said |= dict.fromkeys(("reasoning_content", "thinking"), message["reasoning"])
    said |= {key: message[key] for key in ("name", "tool_call_id") if message.get(key)}
    if message.get("tool_calls"):
        said["tool_calls"] = [_openai_call(call, arguments_as_text) for call in message["tool_calls"]]
    return said


def _openai_call(call: Message, as_text: bool) -> Message:
    function = {"name": call["name"], "arguments": call["arguments"]}
    try:
        arguments = None if as_text else json.loads(call["arguments"])
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        function["arguments"] = arguments
    return {"id": call["id"], "type": "function", "function": function}


def tool_definitions(tools: str | None) -> list[Message] | None:
    """The logged tools JSON as templates expect it (OpenAI's wrapped form); None where it is unusable."""
    try:
        parsed = json.loads(tools) if tools else None
    except (ValueError, RecursionError):
        return None
    definitions = [parsed] if isinstance(parsed, dict) else parsed
    if not isinstance(definitions, list) or not all(isinstance(d, dict) for d in definitions):
        return None
    return [{"type": "function", "function": d} if "name" in d else d for d in definitions] or None
