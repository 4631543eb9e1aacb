"""Chat messages of the OpenAI kind, and the Anthropic content blocks that hide in some, as tables.MESSAGE has them."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import orjson

from opdkit.chat.conversation import JSON, Note, Unreadable

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TEXT_PARTS = ("text", "input_text", "output_text")
_BESIDE_THE_TEXT = ("thinking", "redacted_thinking", "tool_use")  # blocks of a reply that have fields of their own
_PLACEHOLDERS = {"image_url": "image", "input_image": "image", "input_audio": "audio", "input_file": "file",
                 "video_url": "video", "audio_url": "audio"}  # fmt: skip
_WORD = re.compile(r"[A-Za-z0-9_-]{1,40}")
_MEDIA = re.compile(r"[a-z]+/[A-Za-z0-9.+-]{1,60}")
TOO_DEEP = "nested too deeply"
MOST_MESSAGES = 100_000  # in a session; each takes hundreds of bytes, however few the log spends on it
_ARGUMENTS = ("arguments", "input", "args", "parameters")  # OpenAI, Anthropic, LangChain, Llama
NOT_ONLY_TEXT = "not only text"  # why a reply with a picture or a search in it is not trained on
_TOKEN_IDS = ("response_token_ids", "token_ids", "response_ids")


def message(
    role: str,
    content: str | None,
    *,
    reasoning: str | None = None,
    name: str | None = None,
    tool_call_id: str | None = None,
    tool_calls: list[JSON] | None = None,
) -> JSON:
    """One message with every field of tables.MESSAGE."""
    return {"role": role, "content": content, "reasoning": reasoning, "name": name,
            "tool_call_id": tool_call_id, "tool_calls": tool_calls or []}  # fmt: skip


def refuse_too_many(items: Sequence[Any]) -> None:
    """Raise Unreadable for more messages than any conversation has."""
    if len(items) > MOST_MESSAGES:
        raise Unreadable("too many messages", f"{len(items):,}; at most {MOST_MESSAGES:,} are read")


def read_messages(items: Sequence[Any], first: int = 0) -> tuple[list[JSON], dict[int, Note]]:
    """Logged messages, the first of them number `first` -> (messages, notes on the assistant ones by index in these).

    One item becomes several messages where a user message carries tool results. Raises Unreadable.
    """
    refuse_too_many(items)
    messages: list[JSON] = []
    notes: dict[int, Note] = {}
    for position, item in enumerate(items, first):
        try:
            role = ROLES[item["role"]]
        except (KeyError, TypeError):
            raise _bad_role(item, position) from None
        content = item.get("content")
        if content.__class__ is str and len(item) == 2:  # role and text: most messages are no more than that
            messages.append({"role": role, "content": content, "reasoning": None, "name": None, "tool_call_id": None,
                             "tool_calls": []})  # fmt: skip
        elif role == "assistant":
            if not _NOTED.isdisjoint(item):
                notes[len(messages)] = read_note(item)
            if content.__class__ is list and not _all_written(content):
                notes.setdefault(len(messages), Note()).skip_reason = NOT_ONLY_TEXT
            messages.append(_assistant(item, content))
        elif content.__class__ is str or content is None:
            messages.append({"role": role, "content": content, "reasoning": None, "name": _text(item, "name"),
                             "tool_call_id": _call_id(item) if role == "tool" else None,
                             "tool_calls": []})  # fmt: skip
        else:
            messages.extend(_from_parts(item, role, content))
    return messages, notes


def _bad_role(item: Any, index: int) -> Unreadable:
    if not isinstance(item, dict):
        return Unreadable("message is no object", f"message {index} is a {type(item).__name__}")
    if "role" not in item:
        return Unreadable("message without a role", f"message {index}")
    return Unreadable("unknown role", f"message {index} has role {str(item['role'])[:100]!r}")


def _text(item: JSON, key: str) -> str | None:
    if key not in item:
        return None
    value = item[key]
    return value if value.__class__ is str and value else None


def _call_id(item: JSON) -> str | None:
    """The call that a tool message answers; SWE-agent logs it as a list of one."""
    found = _text(item, "tool_call_id")
    several = item.get("tool_call_ids") if found is None else None
    return _text({"id": several[0]}, "id") if isinstance(several, list) and len(several) == 1 else found


def _assistant(item: JSON, content: Any) -> JSON:
    plain = content.__class__ is str or content is None
    if plain and len(item) - ("tool_calls" in item) == 2:  # role and content, and mostly there is no more
        calls = read_calls(item["tool_calls"]) if item.get("tool_calls") else []
        return {"role": "assistant", "content": content, "reasoning": None, "name": None, "tool_call_id": None,
                "tool_calls": calls}  # fmt: skip
    reasoning = _text(item, "reasoning_content") or _text(item, "reasoning")
    calls = read_calls(item["tool_calls"]) if item.get("tool_calls") else []
    beside = item.get("additional_kwargs")  # where LangChain keeps what its provider answered
    if not calls and isinstance(beside, dict) and beside.get("tool_calls"):
        calls = read_calls(beside["tool_calls"])
    if item.get("function_call"):
        calls += read_calls([item["function_call"]])
    if content.__class__ is list:
        thoughts = [b["thinking"] for b in content if _is_block(b, "thinking") and isinstance(b.get("thinking"), str)]
        reasoning = reasoning or "\n".join(thoughts) or None
        calls += [read_call(b) for b in content if _is_block(b, "tool_use")]
        content = [b for b in content if not _is_block(b, *_BESIDE_THE_TEXT)]
        content = flatten(content, between="") if content else None
    elif content.__class__ is not str and content is not None:
        content = flatten(content)
    if content is None:
        content = _text(item, "refusal")
    return {"role": "assistant", "content": content, "reasoning": reasoning, "name": _text(item, "name"),
            "tool_call_id": None, "tool_calls": calls}  # fmt: skip


def _all_written(content: list[Any]) -> bool:
    """Whether a reply's parts are text, thinking and calls: what leaves a placeholder was never written like that."""
    return all(_is_text(p) or _is_block(p, "refusal", *_BESIDE_THE_TEXT) for p in content)


def _from_parts(item: JSON, role: str, content: Any) -> Iterator[JSON]:
    """A message whose content is no plain text. Tool results inside a user message become messages of their own."""
    if role == "tool" and not isinstance(content, list):
        yield message(role, dump(content), name=_text(item, "name"), tool_call_id=_call_id(item))
        return
    blocks = content if role == "user" and isinstance(content, list) else []
    results = [b for b in blocks if _is_block(b, "tool_result")]
    for block in results:
        inner = block.get("content")
        text = inner if isinstance(inner, str) or inner is None else flatten(inner)
        yield message("tool", text, tool_call_id=_text(block, "tool_use_id"))
    rest = [b for b in content if not _is_block(b, "tool_result")] if results else content
    if rest or not results:
        call = _call_id(item) if role == "tool" else None
        yield message(role, flatten(rest), name=_text(item, "name"), tool_call_id=call)


def _is_block(block: Any, *types: str) -> bool:
    return isinstance(block, dict) and block.get("type") in types


def flatten(content: Any, between: str = "\n") -> str:
    """A list of content parts as one text; what is no text leaves a placeholder such as `[image]` on a line of its own.

    `between`: what goes between two texts. Those of a reply were written in one go: cited passages, say.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Unreadable("content of unknown shape", f"content is a {type(content).__name__}")
    if between == "\n":
        return "\n".join(_part(part) for part in content)
    texts = [_is_text(part) for part in content]
    glue = [between if one and other else "\n" for one, other in pairwise(texts)]
    return "".join(_part(part) + after for part, after in zip(content, [*glue, ""], strict=True))


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and (part.get("type") or "text") in _TEXT_PARTS)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise Unreadable("content of unknown shape", f"a content part is a {type(part).__name__}")
    kind = part.get("type")
    if (kind in _TEXT_PARTS or kind is None) and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if isinstance(kind, str) and _WORD.fullmatch(kind):
        what = _PLACEHOLDERS.get(kind, kind)
        source = part.get("source")  # Anthropic: says what is in the base64, which is left out
        media = source.get("media_type") if isinstance(source, dict) else None
        return f"[{what}: {media}]" if isinstance(media, str) and _MEDIA.fullmatch(media) else f"[{what}]"
    raise Unreadable("content of unknown shape", f"a content part has type {str(kind)[:100]!r}")


def read_calls(calls: Any) -> list[JSON]:
    """Logged tool calls as tables.TOOL_CALL. Raises Unreadable."""
    if calls.__class__ is not list:
        raise Unreadable("tool calls of unknown shape", f"tool_calls is a {type(calls).__name__}")
    return [read_call(call) for call in calls]


def read_call(call: Any) -> JSON:
    """One call: OpenAI's `function` or `custom`, or the flat form. Arguments stay verbatim, JSON or not."""
    try:
        function = call["function"]
        if call["id"].__class__ is str and function["name"].__class__ is str and function["arguments"].__class__ is str:
            return {"id": call["id"], "name": function["name"], "arguments": function["arguments"]}
    except (KeyError, TypeError):
        pass  # Not as OpenAI writes it: what follows reads every other shape, and raises for what it cannot read.
    if not isinstance(call, dict):
        raise Unreadable("tool calls of unknown shape", f"a call is a {type(call).__name__}")
    body = call.get("function") or call.get("custom") or call
    name = body.get("name") if isinstance(body, dict) else None
    if not isinstance(name, str):
        raise Unreadable("tool calls of unknown shape", "a call without a function name")
    arguments = next((body[key] for key in _ARGUMENTS if body.get(key) is not None), None)
    if arguments.__class__ is not str:
        arguments = "" if arguments is None else dump(arguments)
    return {"id": _text(call, "id") or "", "name": name, "arguments": arguments}


# -- what the log says about a reply beside its text ---------------------------------------------------------------

_NOTED = frozenset((*_TOKEN_IDS, "logprobs", "finish_reason", "turn_type"))


def read_note(item: JSON) -> Note:
    """Finish reason, sampled tokens, log-probs and side turns of an assistant message."""
    ids, logprobs = sampled_tokens(item)
    kind = "side" if item.get("turn_type") == "side" else "main"
    return Note(_text(item, "finish_reason"), None, kind, ids, logprobs)


def sampled_tokens(item: JSON) -> tuple[list[int] | None, list[float] | None]:
    """(token ids, log-probs in nats) as logged; null where they are missing, malformed or of different lengths."""
    ids = next((_ids(item[key]) for key in _TOKEN_IDS if item.get(key)), None)
    logged = item.get("logprobs")
    if isinstance(logged, dict) and isinstance(logged.get("content"), list):  # chat completions
        tokens = [t if isinstance(t, dict) else {} for t in logged["content"]]
        ids = ids or _ids([t.get("token_id") for t in tokens])
        logprobs = _floats([t.get("logprob") for t in tokens])
    elif isinstance(logged, dict):  # completions
        ids = ids or _ids(logged.get("token_ids"))
        logprobs = _floats(logged.get("token_logprobs"))
    else:
        logprobs = _floats(logged)
    if ids and logprobs and len(ids) != len(logprobs):
        return None, None  # nobody can say which of them belong together
    return ids, logprobs


def _ids(values: Any) -> list[int] | None:
    ok = isinstance(values, list) and values and all(v.__class__ is int and 0 <= v < 2**31 for v in values)
    return values if ok else None


def _floats(values: Any) -> list[float] | None:
    if not isinstance(values, list) or not values:
        return None
    if not all(v.__class__ in (float, int) and math.isfinite(v) and v <= 0 for v in values):
        return None
    return [float(v) for v in values]


def read_tools(tools: Any) -> str | None:
    """Tool definitions as JSON text; a text is kept as it is."""
    if not tools:
        return None
    return tools if isinstance(tools, str) else dump(tools)


def dump(value: Any) -> str:
    """Compact JSON. NaN and Infinity, which JSON does not have, become null. Raises Unreadable for deep nesting."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # it reads 1,024 levels and writes 254
        raise Unreadable(TOO_DEEP, "more levels than can be written again") from None
