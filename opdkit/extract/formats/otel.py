"""OpenTelemetry traces of model calls: OpenInference and GenAI spans, one a line or as OTLP JSON batches.

Conventions read:
- OpenInference (https://arize-ai.github.io/openinference/spec/): `llm.input_messages`, `llm.output_messages`,
  `llm.model_name`, `llm.tools`, `session.id`, `openinference.span.kind`.
- OpenTelemetry GenAI (https://opentelemetry.io/docs/specs/semconv/gen-ai/): `gen_ai.input.messages`,
  `gen_ai.output.messages`, `gen_ai.system_instructions`, `gen_ai.tool.definitions`, `gen_ai.conversation.id`, on the
  span or on its event `gen_ai.client.inference.operation.details`; before version 1.37 the events `gen_ai.user.message`
  and so on, with `gen_ai.choice`; and OpenLLMetry's flat `gen_ai.prompt.0.content`, `gen_ai.completion.0.content`.

Each such span is one call of a model with its whole prompt: sessions are put together by chains.py. Other
spans are counted and left out.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from opdkit.chat.conversation import JSON, LEFT_OUT, Conversation, Note, Unreadable
from opdkit.chat.messages import dump, read_messages
from opdkit.extract.formats.chains import Call, read_chains, unit_of
from opdkit.extract.formats.reader import LeftOut, Line, Reader, Rejected
from opdkit.extract.formats.spans import at, attributes_of, parsed, spans_of

NO_CALL = f"{LEFT_OUT}no model call"
_EVENTS = {"gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.assistant.message": "assistant",
           "gen_ai.tool.message": "tool"}  # fmt: skip
_SESSIONS = (("session", "id"), ("gen_ai", "conversation", "id"), ("langfuse", "session", "id"),
             ("traceloop", "association", "properties", "session_id"))  # fmt: skip
_STARTS = ("start_time", "startTime", "startTimeUnixNano", "start_time_unix_nano")
_SPAN_FIELDS = frozenset(("spanId", "span_id", "parentSpanId", "parent_id", "context", "context.span_id", "span_kind"))


def recognises(record: JSON) -> bool:
    """A batch of spans, or a span with its ids and attributes."""
    if "resourceSpans" in record:
        return True
    has_attributes = isinstance(record.get("attributes"), (dict, list)) or any(
        key.startswith(("attributes.llm.", "attributes.gen_ai.", "attributes.openinference.")) for key in record
    )
    return has_attributes and not _SPAN_FIELDS.isdisjoint(record) and ("name" in record or "traceId" in record)


def id_of(record: JSON) -> str | None:
    call = _call(record)
    return unit_of(call) if isinstance(call, Call) else None


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected | LeftOut]:
    """All calls of one session -> its conversations."""
    return read_chains(unit, _call)


def _call(record: JSON) -> Call | LeftOut:
    """One span."""
    tree = attributes_of(record)
    asked, answered = _messages(tree, record)
    if asked is None and answered is None:
        return LeftOut(NO_CALL)
    if not asked:
        raise Unreadable("no messages", "the span has a reply and no prompt")
    if not answered:
        raise Unreadable("no reply", "the span has a prompt and no reply")
    prompt = _joined(read_messages([m for item in asked for m in _plain_message(item)])[0])
    replies = [m for item in answered for m in _plain_message(item)]
    if not replies or not isinstance(replies[0], dict):
        raise Unreadable("no reply", "the reply is no message")
    said, notes = read_messages([m | {"role": "assistant"} if isinstance(m, dict) else m for m in replies])
    told, note = _joined(said)[0], notes.get(0) or Note()
    note.finish_reason = note.finish_reason or _finish(tree, answered[0])
    return Call(prompt, told, note, model=_model(tree), tools=_tools(tree), logged=_logged(tree, record),
                session=_session(tree, record))  # fmt: skip


def _joined(messages: list[JSON]) -> list[JSON]:
    """Messages, those of an assistant that only call right after another of its own joined to that one.

    OpenAI's Responses have text and calls of one reply as items, and OpenInference has each of them as a message. (Of
    several texts, which are choices, none is joined.)
    """
    found: list[JSON] = []
    for told in messages:
        of_one = told["role"] == "assistant" and told["tool_calls"] and not told["content"] and not told["reasoning"]
        if of_one and found and found[-1]["role"] == "assistant":
            found[-1] = found[-1] | {"tool_calls": [*found[-1]["tool_calls"], *told["tool_calls"]]}
        else:
            found.append(told)
    return found


# -- where the messages are --------------------------------------------------------------------------------------------


def _messages(tree: JSON, record: JSON) -> tuple[list[Any] | None, list[Any] | None]:
    """(prompt, replies) as logged, by the first convention that the span keeps to; None where it has neither."""
    found = _listed(at(tree, "llm", "input_messages")), _listed(at(tree, "llm", "output_messages"))
    if found == (None, None):
        found = _of_gen_ai(tree)
    if found == (None, None):
        found = _listed(at(tree, "gen_ai", "prompt")), _listed(at(tree, "gen_ai", "completion"))
    return _of_events(record) if found == (None, None) else found


def _listed(value: Any) -> list[Any] | None:
    value = parsed(value)
    return value if isinstance(value, list) and value else None


def _of_gen_ai(tree: JSON) -> tuple[list[Any] | None, list[Any] | None]:
    asked, answered = (
        _listed(at(tree, "gen_ai", "input", "messages")),
        _listed(at(tree, "gen_ai", "output", "messages")),
    )
    system = parsed(at(tree, "gen_ai", "system_instructions"))
    if asked is not None and system:
        asked = [{"role": "system", "parts" if isinstance(system, list) else "content": system}, *asked]
    return asked, answered


def _of_events(record: JSON) -> tuple[list[Any] | None, list[Any] | None]:
    """The messages that the events of a span hold."""
    events = record.get("events")
    asked: list[Any] = []
    answered: list[Any] = []
    for event in events if isinstance(events, list) else []:
        name = event.get("name") if isinstance(event, dict) else None
        if not isinstance(name, str):
            continue
        body = attributes_of(event)
        if name in _EVENTS:
            asked.append({"role": _EVENTS[name]} | body)
        elif name == "gen_ai.choice":
            said = parsed(body.get("message"))
            answered.append(body | (said if isinstance(said, dict) else {"content": said or body.get("content")}))
        elif name == "gen_ai.client.inference.operation.details":
            found = _of_gen_ai(body)
            asked, answered = found[0] or asked, found[1] or answered
        elif name == "gen_ai.content.prompt":
            asked = _listed(at(body, "gen_ai", "prompt")) or asked
        elif name == "gen_ai.content.completion":
            answered = _listed(at(body, "gen_ai", "completion")) or answered
    return asked or None, answered or None


# -- messages as the other readers know them --------------------------------------------------------------------------


def _plain_message(item: Any) -> Iterator[Any]:
    """One logged message in OpenAI's shape; several where it holds results of several calls."""
    if isinstance(item, dict) and isinstance(item.get("message"), dict):
        item = item["message"]
    if not isinstance(item, dict):
        yield item  # which is set aside
    elif isinstance(item.get("parts"), list):
        yield from _of_parts(item)
    else:
        yield _of_fields(item)


def _of_parts(item: JSON) -> Iterator[JSON]:
    """A message of the GenAI conventions: text, reasoning, calls and results are parts."""
    texts: list[Any] = []
    thoughts: list[str] = []
    calls: list[JSON] = []
    results: list[JSON] = []
    for part in item["parts"]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            texts.append({"type": "text", "text": part.get("content")})
        elif kind == "reasoning":
            thoughts += [part["content"]] if isinstance(part.get("content"), str) else []
        elif kind == "tool_call":
            calls.append({"id": part.get("id"), "name": part.get("name"), "arguments": part.get("arguments")})
        elif kind == "tool_call_response":
            said = part.get("response", part.get("result"))
            text = said if isinstance(said, str) or said is None else dump(said)
            results.append({"role": "tool", "content": text, "tool_call_id": part.get("id")})
        elif isinstance(part, dict) and isinstance(part.get("modality"), str):
            texts.append({"type": part["modality"], "source": {"media_type": part.get("mime_type")}})
        else:
            texts.append(part)
    yield from results
    if texts or calls or thoughts or not results:
        fields = {"reasoning": "\n".join(thoughts), "tool_calls": calls, "name": item.get("name")}
        yield {"role": item.get("role"), "content": texts or None} | {k: v for k, v in fields.items() if v}


def _of_fields(item: JSON) -> JSON:
    """A message of OpenInference, of OpenLLMetry or of an event, its lists and calls unwrapped."""
    content = parsed(item["content"]) if isinstance(item.get("content"), str) else item.get("content")
    if not (isinstance(content, list) and content and all(isinstance(p, dict) and "type" in p for p in content)):
        content = item.get("content")  # a text that happens to be JSON
        content = content if isinstance(content, (str, list)) or content is None else dump(content)
    if content is None and isinstance(item.get("contents"), list):
        parts = [part.get("message_content", part) if isinstance(part, dict) else part for part in item["contents"]]
        content = [{k: v for k, v in p.items() if k != "image"} if isinstance(p, dict) else p for p in parts]
    told = {"role": item.get("role"), "content": content}
    calls = parsed(item.get("tool_calls"))
    if isinstance(calls, list) and calls:
        told["tool_calls"] = [call.get("tool_call", call) if isinstance(call, dict) else call for call in calls]
    elif isinstance(item.get("function_call_name"), str):
        told["tool_calls"] = [
            {"name": item["function_call_name"], "arguments": item.get("function_call_arguments_json")}
        ]
    for key in ("name", "reasoning", "reasoning_content", "finish_reason"):
        if isinstance(item.get(key), str):
            told[key] = item[key]
    answers = item.get("tool_call_id") or (item.get("id") if item.get("role") == "tool" else None)
    return told | ({"tool_call_id": answers} if answers else {})


# -- what stands beside them -------------------------------------------------------------------------------------------


def _text(*values: Any) -> str | None:
    return next((value for value in values if isinstance(value, str) and value), None)


def _session(tree: JSON, record: JSON) -> str | None:
    return _text(*(at(tree, *path) for path in _SESSIONS), record.get("session_id"))


def _model(tree: JSON) -> str | None:
    return _text(at(tree, "llm", "model_name"), at(tree, "gen_ai", "response", "model"),
                 at(tree, "gen_ai", "request", "model"))  # fmt: skip


def _finish(tree: JSON, answered: Any) -> str | None:
    reasons = parsed(at(tree, "gen_ai", "response", "finish_reasons"))
    first = reasons[0] if isinstance(reasons, list) and reasons else reasons
    return _text(at(answered, "finish_reason"), at(tree, "llm", "finish_reason"), first)


def _tools(tree: JSON) -> str | None:
    tools = at(tree, "llm", "tools")
    if isinstance(tools, list):
        schemas = [parsed(at(tool, "tool", "json_schema") or tool) for tool in tools]
        return dump(schemas) if schemas else None
    functions = at(tree, "llm", "request", "functions")  # OpenLLMetry
    if isinstance(functions, list) and functions:
        each = [{key: parsed(value) for key, value in f.items()} for f in functions if isinstance(f, dict)]
        return dump([{"type": "function", "function": function} for function in each])
    defined = at(tree, "gen_ai", "tool", "definitions")
    return defined if isinstance(defined, str) and defined else dump(defined) if defined else None


def _logged(tree: JSON, record: JSON) -> JSON:
    """What the metadata keep of a span."""
    context = record.get("context") if isinstance(record.get("context"), dict) else {}
    found = {
        "name": record.get("name"),
        "trace_id": _text(record.get("traceId"), record.get("trace_id"), at(context, "trace_id"),
                          record.get("context.trace_id")),
        "span_id": _text(record.get("spanId"), record.get("span_id"), at(context, "span_id"),
                         record.get("context.span_id")),
        "timestamp": next((record[key] for key in _STARTS if record.get(key)), None),
        "user_id": at(tree, "user", "id"),
        "metadata": parsed(tree.get("metadata")),
        "tags": at(tree, "tag", "tags"),
    }  # fmt: skip
    return {key: value for key, value in found.items() if value not in (None, "", [], {})}


READER = Reader("otel", "id", recognises, read, id_of=id_of, unfold=spans_of)
