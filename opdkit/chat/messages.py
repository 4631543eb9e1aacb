"""Reading of chat messages in OpenAI's form, also with Anthropic's content blocks, as `message` of tables.toml."""

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from opdkit.chat.conversation import JSON, NO_DECISION, Note, Unreadable

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
         "function": "tool"}  # fmt: skip
MOST_MESSAGES = 100_000  # per session; each takes hundreds of bytes of memory, even if it is short in the log
NOT_ONLY_TEXT = "not only text"  # skip reason of a reply with an image or a web search in it
TOO_DEEP = "nested too deeply"
_TEXT_PARTS = ("text", "input_text", "output_text")
_CALL_PARTS = ("tool_use", "function_call", "tool_call", "tool-call")  # Anthropic, Responses, LangChain, the AI SDK
_THOUGHT_PARTS = ("thinking", "reasoning")
_OWN_FIELDS = (*_THOUGHT_PARTS, "redacted_thinking", "tool-approval-request", *_CALL_PARTS)  # apart from the text
PART_TYPES = (*_TEXT_PARTS, *_OWN_FIELDS, "refusal", "image", "image_url", "input_image", "input_audio", "audio",
              "file", "input_file", "document", "tool_result", "tool-result")  # fmt: skip
_PLACEHOLDERS = {
    **dict.fromkeys(("image_url", "input_image"), "image"),
    **dict.fromkeys(("audio_url", "input_audio"), "audio"),
    "video_url": "video",
    "input_file": "file",
}
_WORD = re.compile(r"[A-Za-z0-9_-]{1,40}")
_MEDIA = re.compile(r"[a-z]+/[A-Za-z0-9.+-]{1,60}")
PLACEHOLDERS = re.compile(rf"(\[{_WORD.pattern}(: {_MEDIA.pattern})?\]\s*)+")  # a text of placeholders only
_ARGUMENTS = ("arguments", "input", "args", "parameters")  # OpenAI, Anthropic, LangChain, Llama
ROUNDING = 1e-3  # log-probs are at most 0, apart from rounding
_TOKEN_IDS = ("response_token_ids", "token_ids", "response_ids")
_BESIDE_TEXT = frozenset(("images", "experimental_attachments"))
_NOTED = frozenset((*_TOKEN_IDS, "logprobs", "finish_reason", "turn_type", "decision"))


def message(
    role: str,
    content: str | None,
    *,
    reasoning: str | None = None,
    name: str | None = None,
    tool_call_id: str | None = None,
    tool_calls: list[JSON] | None = None,
) -> JSON:
    """Return a message with every field of `message` in tables.toml."""
    return {"role": role, "content": content, "reasoning": reasoning, "name": name, "tool_call_id": tool_call_id,
            "tool_calls": tool_calls or []}  # fmt: skip


def first_text(*values: Any) -> str | None:
    """Return the first of these values that is a non-empty text; None if there is none."""
    return next((value for value in values if isinstance(value, str) and value), None)


def as_list(value: Any) -> list[Any]:
    """Return `value` if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def find_key(record: JSON, keys: Iterable[str], field: str = "role") -> str | None:
    """Return the first of `keys` that holds a list of objects with `field`, judged by the first object."""
    for key in keys:
        items = record.get(key)
        if isinstance(items, list) and items and isinstance(items[0], dict) and field in items[0]:
            return key
    return None


def require_list(items: Any, key: str) -> list[Any]:
    """Return `items`, logged under `key`, if it is a non-empty list. Raise Unreadable otherwise."""
    if not isinstance(items, list) or not items:
        raise Unreadable("no messages", f"{key} is {'empty' if items == [] else 'a ' + type(items).__name__}")
    check_message_count(items)
    return items


def check_message_count(items: Sequence[Any]) -> None:
    """Raise Unreadable for more messages than any conversation has."""
    if len(items) > MOST_MESSAGES:
        raise Unreadable("too many messages", f"{len(items):,}; at most {MOST_MESSAGES:,} are read")


def read_messages(items: Sequence[Any], first: int = 0) -> tuple[list[JSON], dict[int, Note]]:
    """Return (messages, notes on the assistant messages by index) of logged messages; errors number these from `first`.

    One item becomes several messages if it carries several tool results, or text and tool results. Raises Unreadable.
    """
    check_message_count(items)
    messages: list[JSON] = []
    notes: dict[int, Note] = {}
    for position, item in enumerate(items, first):
        try:
            role = ROLES[item["role"]]
        except (KeyError, TypeError):
            if not isinstance(item, dict):
                problem = Unreadable("message is not an object", f"message {position} is a {type(item).__name__}")
            elif "role" not in item:
                problem = Unreadable("message without a role", f"message {position}")
            else:
                problem = Unreadable("unknown role", f"message {position} has role {str(item['role'])[:100]!r}")
            raise problem from None
        content = item.get("content")
        if not _BESIDE_TEXT.isdisjoint(item) and (media := _read_media(item)):
            content = media + (content if isinstance(content, list) else [{"type": "text", "text": content or ""}])
        if content.__class__ is str and len(item) == 2:  # role and text: most messages are no more than that
            messages.append({"role": role, "content": content, "reasoning": None, "name": None, "tool_call_id": None,
                             "tool_calls": []})  # fmt: skip
        elif role == "assistant":
            if not _NOTED.isdisjoint(item):
                notes[len(messages)] = read_note(item)
            if has_placeholder(content, _OWN_FIELDS):
                notes.setdefault(len(messages), Note()).skip_reason = NOT_ONLY_TEXT
            messages.append(_read_reply(item, content))
        elif content.__class__ is str or content is None:
            call_id = _find_answered_call(item) if role == "tool" else None
            messages.append(message(role, content, name=first_text(item.get("name")), tool_call_id=call_id))
        else:
            messages.extend(_read_blocks(item, role, content))
    return messages, notes


def _read_media(item: JSON) -> list[JSON]:
    """Return the pictures and files that a message holds beside its content (Ollama, version 4 of the AI SDK)."""
    files = [file if isinstance(file, dict) else {} for file in as_list(item.get("experimental_attachments"))]
    return [{"type": "image"} for _ in as_list(item.get("images"))] + [
        {"type": "file", "source": {"media_type": file.get("contentType")}} for file in files
    ]


def has_placeholder(content: Any, own_fields: Sequence[str] = ()) -> bool:
    """Return whether a part of a reply's content becomes a placeholder in its text, which the policy did not write.

    Parts of the types `own_fields` are stored in fields other than the text.
    """
    return any(not (_is_text(part) or _is_block(part, "refusal", *own_fields)) for part in as_list(content))


def _find_answered_call(item: JSON) -> str | None:
    """Return the id of the call that a tool message answers. SWE-agent logs it as a list with one id."""
    several = as_list(item.get("tool_call_ids"))
    return first_text(item.get("tool_call_id"), *(several if len(several) == 1 else ()))


def _read_reply(item: JSON, content: Any) -> JSON:
    """Return an assistant message with reasoning and calls apart from its text, wherever they were logged."""
    calls = read_calls(item["tool_calls"]) if item.get("tool_calls") else []
    reasoning = first_text(item.get("reasoning_content"), item.get("reasoning"), item.get("thinking"))
    provider = item.get("additional_kwargs")  # LangChain keeps its provider's answer here
    if isinstance(provider, dict):
        calls = calls or read_calls(provider.get("tool_calls") or [])
        reasoning = reasoning or first_text(provider.get("reasoning_content"))
    if item.get("function_call"):
        calls.append(read_call(item["function_call"]))
    if content.__class__ is list:
        thoughts = [text for part in content if _is_block(part, *_THOUGHT_PARTS) for text in _read_thoughts(part)]
        reasoning = reasoning or "\n".join(thoughts) or None
        calls = calls or [read_call(part) for part in content if _is_block(part, *_CALL_PARTS)]
        content = [block for block in content if not _is_block(block, *_OWN_FIELDS)] or None
    content = join_content(content, between="")
    if content is None:
        content = first_text(item.get("refusal"))
    return message("assistant", content, reasoning=reasoning, name=first_text(item.get("name")), tool_calls=calls)


def _read_result(block: JSON) -> str | None:
    """Return the text of a tool's result. Amp logs it under `run`, with data that is no text."""
    run = block.get("run")
    if "content" in block or not isinstance(run, dict):
        return join_content(block.get("content"))
    result = next((run[key] for key in ("result", "error", "reason") if run.get(key) is not None), run)
    return result if isinstance(result, str) else dump(result)


def _read_thoughts(part: JSON) -> list[str]:
    """Return the texts of a thinking part, which holds a text or a list of parts."""
    for key in ("thinking", "content", "summary", "reasoning", "text"):
        items = part[key] if isinstance(part.get(key), list) else [{"text": part.get(key)}]
        texts = [text for item in items if isinstance(item, dict) and (text := first_text(item.get("text")))]
        if texts:
            return texts
    return []


def _read_blocks(item: JSON, role: str, content: Any) -> Iterator[JSON]:
    """Yield the messages of an item whose content is not plain text. Each tool result becomes a message of its own."""
    name, call_id = first_text(item.get("name")), _find_answered_call(item) if role == "tool" else None
    # An object without these keys is data of the tool, and no content part.
    is_data = any(isinstance(part, dict) and not part.keys() & {"type", "text", "refusal"} for part in as_list(content))
    if role == "tool" and (is_data or not isinstance(content, list)):
        yield message(role, dump(content), name=name, tool_call_id=call_id)
        return
    if role == "tool" and content and all(_is_block(b, "tool-result", "tool-approval-response") for b in content):
        for block in content:  # the AI SDK's; approvals are between its client and its server
            if block["type"] == "tool-result":
                output = block.get("output", block.get("result"))
                kind = output.get("type") if isinstance(output, dict) and "output" in block else None  # version 5
                output = output.get("value", output.get("reason", output)) if kind else output
                is_text = isinstance(output, str) or (kind == "content" and isinstance(output, list))
                text = join_content(output) if is_text else dump(output)
                name, call_id = first_text(block.get("toolName")), first_text(block.get("toolCallId"))
                yield message(role, text, name=name, tool_call_id=call_id)
        return
    blocks = content if role == "user" and isinstance(content, list) else []
    results = [block for block in blocks if _is_block(block, "tool_result")]
    for block in results:
        call_of_result = first_text(block.get("tool_use_id"), block.get("toolUseID"))
        yield message("tool", _read_result(block), tool_call_id=call_of_result)
    rest = [block for block in content if not _is_block(block, "tool_result")] if results else content
    if rest or not results:
        yield message(role, join_content(rest), name=name, tool_call_id=call_id)


def join_content(content: Any, between: str = "\n") -> str | None:
    """Return content as one text. A part that is not text leaves a placeholder such as `[image]` on its own line.

    `between` separates two texts; it is "" in a reply, whose texts (cited passages, for example) were written in one
    go. Raises Unreadable.
    """
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Unreadable("content of unknown shape", f"content is a {type(content).__name__}")
    pieces: list[str] = []
    after_text = False
    for part in content:
        is_text = _is_text(part)
        if pieces:
            pieces.append(between if after_text and is_text else "\n")
        pieces.append(part if isinstance(part, str) else _read_part(part))
        after_text = is_text
    return "".join(pieces)


def _read_part(part: Any) -> str:
    """Return the text of one content part, or its placeholder."""
    if not isinstance(part, dict):
        raise Unreadable("content of unknown shape", f"a content part is a {type(part).__name__}")
    kind = part.get("type")
    if kind is None or kind in (*_TEXT_PARTS, "refusal"):
        # Servers that omit empty fields may write only the type.
        without = None if kind and len(part) == 1 else part
        text = part.get("refusal" if kind == "refusal" else "text", without)
        text = text.get("value", text) if isinstance(text, dict) else text  # OpenAI's Assistants
        if text is None or isinstance(text, str):
            return text or ""
        raise Unreadable("content of unknown shape", "the text of a content part is missing, or is not text")
    if not isinstance(kind, str) or not _WORD.fullmatch(kind):
        raise Unreadable("content of unknown shape", f"a content part has type {str(kind)[:100]!r}")
    source = part.get("source")  # Anthropic: names the type of the base64 data, which is left out
    if (text := _read_document(part, source)) is not None:
        return text
    media = source.get("media_type") if isinstance(source, dict) else None
    known = f": {media}" if isinstance(media, str) and _MEDIA.fullmatch(media) else ""
    return f"[{_PLACEHOLDERS.get(kind, kind)}{known}]"


def _read_document(part: JSON, source: Any) -> str | None:
    """Return the text of Anthropic's search result, or of a document that is not a file; None for any other part."""
    held = part.get("content") if part["type"] == "search_result" else None
    if part["type"] == "document" and isinstance(source, dict) and source.get("type") in ("text", "content"):
        held = source.get("data", source.get("content"))
    texts = [first_text(block.get("text")) for block in as_list(held) if isinstance(block, dict)]
    return held if isinstance(held, str) else "\n".join(filter(None, texts)) or None


def is_part(value: Any) -> bool:
    """Return whether a value is a part of a message's content, and not a message itself."""
    return isinstance(value, dict) and "role" not in value and _is_block(value, *PART_TYPES)


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and (part.get("type") or "text") in _TEXT_PARTS)


def _is_block(block: Any, *types: str) -> bool:
    return isinstance(block, dict) and block.get("type") in types


def first_choice(choices: Any) -> Any:
    """Return the choice with index 0 of a response, or else its first choice; None if it has none."""
    items = as_list(choices)
    return next((item for item in items if isinstance(item, dict) and item.get("index") == 0), next(iter(items), None))


def read_tools(tools: Any) -> str | None:
    """Return tool definitions as JSON text; a text stays as it is."""
    if not tools:
        return None
    return tools if isinstance(tools, str) else dump(tools)


def read_calls(calls: Any) -> list[JSON]:
    """Return logged tool calls as `tool_call` of tables.toml. Raise Unreadable unless they are a list or its JSON."""
    if calls.__class__ is str:
        with contextlib.suppress(orjson.JSONDecodeError):
            calls = orjson.loads(calls) or []
    if calls.__class__ is not list:
        raise Unreadable("tool calls of unknown shape", f"tool_calls is a {type(calls).__name__}")
    return [read_call(call) for call in calls]


def read_call(call: Any) -> JSON:
    """Return one call, from OpenAI's `function` or `custom` or a flat form. Arguments stay verbatim, JSON or not."""
    try:
        function = call["function"]
        if call["id"].__class__ is str and function["name"].__class__ is str and function["arguments"].__class__ is str:
            return {"id": call["id"], "name": function["name"], "arguments": function["arguments"]}
    except (KeyError, TypeError):
        pass  # Not in OpenAI's shape. The code below reads every other shape, or raises Unreadable.
    if not isinstance(call, dict):
        raise Unreadable("tool calls of unknown shape", f"a call is a {type(call).__name__}")
    body = call.get("function") or call.get("custom") or call
    name = body.get("name", body.get("toolName")) if isinstance(body, dict) else None
    if not isinstance(name, str):
        raise Unreadable("tool calls of unknown shape", "a call without a function name")
    arguments = next((body[key] for key in _ARGUMENTS if body.get(key) is not None), None)
    if arguments.__class__ is not str:
        arguments = "" if arguments is None else dump(arguments)
    return {
        "id": first_text(*(call.get(key) for key in ("call_id", "id", "toolCallId", "toolUseId"))) or "",
        "name": name,
        "arguments": arguments,
    }


def read_note(item: JSON) -> Note:
    """Return finish reason, side turn, token ids, log-probs (nats) and decision of an assistant message.

    Ids and log-probs are None if they are missing, malformed or of different lengths. Raises Unreadable for a decision
    that does not have the shape of `decision` in tables.toml.
    """
    ids = next((_read_ids(item[key]) for key in _TOKEN_IDS if item.get(key)), None)
    logged = item.get("logprobs")
    if isinstance(logged, dict) and isinstance(logged.get("content"), list):  # chat completions
        tokens = [token if isinstance(token, dict) else {} for token in logged["content"]]
        ids = ids or _read_ids([token.get("token_id") for token in tokens])
        logged = [token.get("logprob") for token in tokens]
    elif isinstance(logged, dict):  # completions
        ids = ids or _read_ids(logged.get("token_ids"))
        logged = logged.get("token_logprobs")
    logprobs = None
    if isinstance(logged, list) and all(
        value.__class__ in (float, int) and math.isfinite(value) and value < ROUNDING for value in logged
    ):
        logprobs = [min(0.0, float(value)) for value in logged] or None
    if ids and logprobs and len(ids) != len(logprobs):
        ids = logprobs = None  # it is unknown which of them belong together
    kind = "side" if item.get("turn_type") == "side" else "main"
    note = Note(first_text(item.get("finish_reason")), kind=kind, token_ids=ids, logprobs=logprobs)
    if item.get("decision") is not None:
        note.add_decision(**_read_decision(item["decision"]))
    return note


def _read_decision(logged: Any) -> JSON:
    if not isinstance(logged, dict) or not logged.keys() <= NO_DECISION.keys():
        found = ", ".join(map(str, logged))[:100] if isinstance(logged, dict) else type(logged).__name__
        detail = f"it has {', '.join(NO_DECISION)}, not {found}"
        raise Unreadable("decision of unknown shape", detail)
    rating, tags = logged.get("rating"), logged.get("tags") or []
    texts = {name: logged.get(name) for name in ("comment", "edited", "kept")}
    are_texts = isinstance(tags, list) and all(isinstance(text, str) for text in (*tags, *filter(None, texts.values())))
    if rating not in (None, -1, 0, 1) or not are_texts:
        raise Unreadable("decision of unknown shape", "rating is -1, 0 or 1, tags a list of texts, the others texts")
    return texts | {"rating": None if rating is None else int(rating), "tags": tags}


def _read_ids(values: Any) -> list[int] | None:
    ok = isinstance(values, list) and values and all(v.__class__ is int and 0 <= v < 2**31 for v in values)
    return values if ok else None


def dump(value: Any) -> str:
    """Return compact JSON. NaN and Infinity, which JSON does not have, become null. Raise Unreadable if too deep."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # orjson reads 1,024 levels and writes 254
        raise Unreadable(TOO_DEEP, "more levels than can be written again") from None
