"""OpenTelemetry traces of model calls: OpenInference and GenAI spans, one per line or as OTLP JSON batches.

These conventions are read:
- OpenInference (https://arize-ai.github.io/openinference/spec/): `llm.input_messages`, `llm.output_messages`,
  `llm.model_name`, `llm.tools`, `session.id`, `openinference.span.kind`.
- OpenTelemetry GenAI (https://opentelemetry.io/docs/specs/semconv/gen-ai/): `gen_ai.input.messages`,
  `gen_ai.output.messages`, `gen_ai.system_instructions`, `gen_ai.tool.definitions`, `gen_ai.conversation.id`, on the
  span or on its event `gen_ai.client.inference.operation.details`; before version 1.37, events such as
  `gen_ai.user.message` and `gen_ai.choice`; OpenLLMetry: flat `gen_ai.prompt.0.content`, `gen_ai.completion.0.content`.
- The AI SDK: `ai.prompt.messages`, `ai.response.text`. Google's ADK: `gcp.vertex.agent.llm_request`.
"""

from collections.abc import Iterator
from typing import Any

from opdkit.chat.conversation import JSON, LEFT_OUT, Unreadable
from opdkit.chat.messages import PART_TYPES, as_list, dump, first_text, read_tools
from opdkit.extract.formats.chains import NO_CALL, Call, call_reader
from opdkit.extract.formats.feedback import add_feedback
from opdkit.extract.formats.reader import LeftOut
from opdkit.extract.formats.sessions import read_pieces
from opdkit.extract.formats.spans import drop_empty, nest_attributes, parse_text, split_spans
from opdkit.extract.mapping import value_at

NOT_OF_CALL = f"{LEFT_OUT}annotation of a span that called no model"
# Names of operations that call a model, in the conventions and in LiteLLM.
_OPERATIONS = ("chat", "generate_content", "text_completion", "completion", "acompletion", "responses", "aresponses",
               "anthropic_messages")  # fmt: skip
_BEDROCK = frozenset(("text", "toolUse", "toolResult", "reasoningContent", "image", "document", "video", "cachePoint"))
_CALLS = ("function_call", "functionCall", "toolUse")  # of the conventions and Google, then of Bedrock
_ANSWERS = ("function_response", "functionResponse", "toolResult")
_EVENTS = {"gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.assistant.message": "assistant",
           "gen_ai.tool.message": "tool"}  # fmt: skip
_ADK = ("gcp", "vertex", "agent")
_SESSIONS = (("session", "id"), ("gen_ai", "conversation", "id"), ("langfuse", "session", "id"),
             ("traceloop", "association", "properties", "session_id"), (*_ADK, "session_id"),
             ("ai", "telemetry", "metadata", "sessionId"))  # fmt: skip
_MODELS = (("llm", "model_name"), ("gen_ai", "response", "model"), ("gen_ai", "request", "model"))
_OPERATION = ("gen_ai", "operation", "name")
_STARTS = ("start_time", "startTime", "startTimeUnixNano", "start_time_unix_nano")
_SPAN_FIELDS = frozenset(("spanId", "span_id", "parentSpanId", "parent_id", "context", "context.span_id", "span_kind"))

Logged = tuple[list[Any] | None, list[Any] | None]  # prompt and replies, as logged


def recognises(record: JSON) -> bool:
    """Return whether the record is a batch of spans, or a span with its ids and attributes."""
    if "resourceSpans" in record:
        return True
    if "attributes" not in record and any(isinstance(record.get(key), list) for key in ("spans", "data")):
        span = next((item for key in ("spans", "data") for item in as_list(record.get(key))), None)
        return isinstance(span, dict) and "attributes" in span and recognises(span)
    has_attributes = isinstance(record.get("attributes"), (dict, list)) or any(
        key.startswith(("attributes.llm.", "attributes.gen_ai.", "attributes.openinference.")) for key in record
    )
    return has_attributes and not _SPAN_FIELDS.isdisjoint(record) and ("name" in record or "traceId" in record)


def unfold(record: JSON) -> list[JSON]:
    """Return the spans of a record. Annotations on a span that called no model are moved to the trace's last call.

    Raises Unreadable.
    """
    spans = split_spans(record)
    if not any(span.get("annotations") for span in spans):
        return spans
    trees = map(nest_attributes, spans)
    calls = [n for n, tree in enumerate(trees) if _is_call(tree) and _find_messages(tree, spans[n]) != (None, None)]
    last = {_find_trace_id(spans[n]): n for n in sorted(calls, key=lambda n: str(_start(spans[n])))}
    for n, span in enumerate(spans):
        target = last.get(_find_trace_id(span))
        if span.get("annotations") and target is not None and n not in calls:
            both = [note for index in (target, n) for note in as_list(parse_text(spans[index].get("annotations")))]
            spans[target], spans[n] = spans[target] | {"annotations": both}, span | {"annotations": None}
    return spans


def _is_call(tree: JSON) -> bool:
    """Return whether a span with these attributes called a model. True also if it does not say what it did."""
    kind, operation = (value_at(tree, path) for path in (("openinference", "span", "kind"), _OPERATION))
    return kind in (None, "LLM") and operation in (None, *_OPERATIONS)


def _find_trace_id(record: JSON) -> str | None:
    return first_text(record.get("traceId"), record.get("trace_id"), value_at(record, ("context", "trace_id")),
                      record.get("context.trace_id"))  # fmt: skip


def _start(record: JSON) -> Any:
    start = next((record[key] for key in _STARTS if record.get(key)), None)
    if isinstance(start, list) and len(start) == 2 and all(type(number) is int for number in start):
        return start[0] + start[1] / 1e9  # seconds and nanoseconds, from JavaScript
    return start


def read_call(record: JSON) -> Call | LeftOut:
    """Read one span. Raises Unreadable."""
    tree = nest_attributes(record)
    prompt_items, reply_items = _find_messages(tree, record) if _is_call(tree) else (None, None)
    if prompt_items is None and reply_items is None:
        return LeftOut(NOT_OF_CALL if any(_read_annotations(record)) else NO_CALL)
    if not prompt_items:
        raise Unreadable("no messages", "the span has a reply and no prompt")
    if not reply_items:
        raise Unreadable("no reply", "the span has a prompt and no reply")
    messages = [message for item in prompt_items for message in openai_messages(item)]
    system = value_at(parse_text(value_at(tree, ("llm", "invocation_parameters"))), ("system",))  # Anthropic's API
    if system and value_at(messages, (0, "role")) not in ("system", "developer"):
        messages = [{"role": "system", "content": system}, *messages]
    prompt, _ = read_pieces(messages, only_calls=True)
    replies = [message for item in reply_items for message in openai_messages(item)]
    if not replies or not isinstance(replies[0], dict):
        raise Unreadable("no reply", "the reply is not a message")
    if replies[0].get("role") == "thinking" and isinstance(value_at(replies, (1,)), dict):  # OpenLLMetry, of Anthropic
        thought = {"reasoning": replies[0]["content"], "finish_reason": replies[0].get("finish_reason")}
        replies = [thought | replies[1], *replies[2:]]
    read, notes = read_pieces([m | {"role": "assistant"} for m in replies if isinstance(m, dict)], only_calls=True)
    reply, note = read[0], notes[0]
    reasons = parse_text(value_at(tree, ("gen_ai", "response", "finish_reasons")))
    note.finish_reason = first_text(
        note.finish_reason,
        value_at(tree, ("llm", "finish_reason")),
        reasons[0] if isinstance(reasons, list) and reasons else reasons,
    )
    add_feedback(note, _read_annotations(record))
    logged = {
        "name": record.get("name"),
        "trace_id": _find_trace_id(record),
        "span_id": first_text(record.get("spanId"), record.get("span_id"), value_at(record, ("context", "span_id")),
                              record.get("context.span_id")),
        "timestamp": _start(record),
        "user_id": value_at(tree, ("user", "id")),
        "metadata": parse_text(tree.get("metadata")),
        "tags": value_at(tree, ("tag", "tags")),
    }  # fmt: skip
    model = first_text(*(value_at(tree, path) for path in _MODELS))
    session = first_text(*(value_at(tree, path) for path in _SESSIONS), record.get("session_id"))
    tools = read_span_tools(tree)
    return Call(prompt, reply, note, model=model, tools=tools, logged=drop_empty(logged), session=session)


def _read_annotations(record: JSON) -> Iterator[JSON]:
    """Yield the annotations on a span that people made, not those of models or code."""
    for annotation in as_list(parse_text(record.get("annotations"))):
        if isinstance(annotation, dict) and annotation.get("annotator_kind", "HUMAN") == "HUMAN":
            result = annotation.get("result")
            result = result if isinstance(result, dict) else annotation
            yield {"name": annotation.get("name"), "score": result.get("score"), "label": result.get("label"),
                   "comment": result.get("explanation")}  # fmt: skip


def read_span_tools(tree: JSON) -> str | None:
    tools = value_at(tree, ("llm", "tools"))
    if isinstance(tools, list):
        return dump([parse_text(value_at(tool, ("tool", "json_schema")) or tool) for tool in tools]) if tools else None
    functions = value_at(tree, ("llm", "request", "functions"))  # OpenLLMetry
    if isinstance(functions, list) and functions:
        parsed = [{key: parse_text(value) for key, value in f.items()} for f in functions if isinstance(f, dict)]
        return dump([{"type": "function", "function": function} for function in parsed])
    own = [parse_text(tool) for tool in as_list(value_at(tree, ("ai", "prompt", "tools")))]
    asked = parse_text(tree.get("model_request_parameters"))  # Pydantic AI's first versions
    keys = {"name": "name", "description": "description", "parameters": "parameters_json_schema"}
    own += [{key: value_at(tool, (name,)) for key, name in keys.items()}
            for kind in ("function_tools", "output_tools") for tool in as_list(value_at(asked, (kind,)))]  # fmt: skip
    for tool in as_list(value_at(parse_text(value_at(tree, (*_ADK, "llm_request"))), ("config", "tools"))):
        own += as_list(value_at(tool, ("function_declarations",)))
    return read_tools(value_at(tree, ("gen_ai", "tool", "definitions")) or own)


def _find_messages(tree: JSON, record: JSON) -> Logged:
    """Return (prompt, replies) by the first convention that the span follows; None for each that it does not hold."""
    for logged in (
        (_list_at(tree, "llm", "input_messages"), _list_at(tree, "llm", "output_messages")),
        _read_genai(tree),
        (_list_at(tree, "gen_ai", "prompt"), _list_at(tree, "gen_ai", "completion")),
        _read_ai_sdk(tree),
        read_adk(tree),
    ):
        if logged != (None, None):
            return logged
    return _read_events(record, tree)


def _list_at(tree: JSON, *steps: str) -> list[Any] | None:
    value = parse_text(value_at(tree, steps))
    return value if isinstance(value, list) and value else None


def _read_genai(tree: JSON) -> Logged:
    prompt, replies = _list_at(tree, "gen_ai", "input", "messages"), _list_at(tree, "gen_ai", "output", "messages")
    system = parse_text(value_at(tree, ("gen_ai", "system_instructions")))
    if prompt is not None and system:
        text, first = _join_texts(system), prompt[0]
        has_system = value_at(first, ("role",)) in ("system", "developer")
        if not (text and has_system and text in _join_texts(first.get("parts") or first.get("content"))):
            prompt = [{"role": "system", "parts" if isinstance(system, list) else "content": system}, *prompt]
    return prompt, replies


def _join_texts(parts: Any) -> str:
    """Return the texts of parts, one per line; a text itself."""
    if isinstance(parts, str):
        return parts
    return "\n".join(first_text(value_at(p, ("content",)), value_at(p, ("text",))) or "" for p in as_list(parts))


def _read_ai_sdk(tree: JSON) -> Logged:
    prompt, response = _list_at(tree, "ai", "prompt", "messages"), value_at(tree, ("ai", "response"))
    text, made, thought, calls = (value_at(response, (n,)) for n in ("text", "object", "reasoning", "toolCalls"))
    reply = {"content": text or made, "reasoning": thought, "tool_calls": calls}
    return prompt, [reply] if prompt and any(reply.values()) else None


def read_adk(tree: JSON) -> Logged:
    request, response = (parse_text(value_at(tree, (*_ADK, f"llm_{name}"))) for name in ("request", "response"))
    system = value_at(request, ("config", "system_instruction"))
    prompt = [{"role": "system", "content": system}] if isinstance(system, str) else []
    contents = value_at(request, ("contents",))
    prompt += [{"role": "user", "content": contents}] if isinstance(contents, str) else as_list(contents)
    reply = value_at(response, ("content",)) or value_at(response, ("candidates", 0, "content"))  # Google's own form
    return prompt or None, [reply] if reply else None


def _read_events(record: JSON, tree: JSON) -> Logged:
    """Return (prompt, replies) from a span's events, or from Pydantic AI's attribute `events`."""
    own = (event for event in as_list(parse_text(tree.get("events"))) if isinstance(event, dict))
    prompt: list[Any] = []
    replies: list[Any] = []
    for event in as_list(record.get("events")) or [{"name": e.get("event.name"), "attributes": e} for e in own]:
        name = event.get("name") if isinstance(event, dict) else None
        if not isinstance(name, str):
            continue
        body = nest_attributes(event)
        if name in _EVENTS:
            prompt.append(read_event({"role": _EVENTS[name]} | body))
        elif name == "gen_ai.choice":
            replies.append(read_event(body))
        elif name == "gen_ai.client.inference.operation.details":
            logged = _read_genai(body)
            prompt, replies = logged[0] or prompt, logged[1] or replies
        elif name == "gen_ai.content.prompt":
            prompt = _list_at(body, "gen_ai", "prompt") or prompt
        elif name == "gen_ai.content.completion":
            replies = _list_at(body, "gen_ai", "completion") or replies
    return prompt or None, replies or None


def read_event(body: JSON) -> JSON:
    """Return an event's attributes as a message. They may hold its fields as JSON text, or a reply under `message`."""
    said = parse_text(value_at(body, ("gen_ai", "event", "content")))  # Azure's
    body = body | (said if isinstance(said, dict) else {"content": said} if said else {})
    reply = parse_text(body.pop("message", None))
    reply = reply if isinstance(reply, dict) else {"content": reply or body.get("content")}
    return body | reply | _read_bedrock(reply.get("content"))


def _read_bedrock(content: Any) -> JSON:
    """Return `{"parts": ...}` if content is JSON text of Bedrock's parts, as Strands logs it; {} for other content."""
    logged = as_list(parse_text(content))
    if not logged or not all(isinstance(part, dict) and len(part) == 1 and part.keys() <= _BEDROCK for part in logged):
        return {}
    return {"parts": [part for part in logged if "cachePoint" not in part]}


def openai_messages(item: Any) -> list[Any]:
    """Return one logged message in OpenAI's form; several messages if it holds the results of several calls."""
    if isinstance(item, dict) and isinstance(item.get("message"), dict):
        item = item["message"]
    if not isinstance(item, dict):
        return [item]  # read_messages rejects it
    if item.get("tool_call_id") and item.get("content") and item.get("contents"):  # a result, and what the user said
        said = {key: value for key, value in item.items() if key not in ("content", "tool_call_id")}
        return [_convert_fields(item | {"contents": None}), _convert_fields(said)]
    return _convert_parts(item) if isinstance(item.get("parts"), list) else [_convert_fields(item)]


def _read_role(item: JSON) -> Any:
    return "assistant" if item.get("role") == "model" else item.get("role")  # Google's name


def _convert_parts(item: JSON) -> list[JSON]:
    """Convert a message of the GenAI conventions, Gemini or Bedrock: text, thinking, calls and results are parts."""
    texts: list[Any] = []
    thoughts: list[str] = []
    calls = [*as_list(item.get("tool_calls"))]  # LiteLLM has them beside the parts
    results: list[JSON] = []
    for part in item["parts"]:
        fields = part if isinstance(part, dict) else {}
        kind, call = fields.get("type"), next((fields[name] for name in _CALLS if name in fields), None)
        answer = next((fields[name] for name in _ANSWERS if name in fields), None)
        thought = value_at(fields, ("reasoningContent", "reasoningText")) or fields
        if fields.get("builtin"):
            texts.append({"type": "server_tool_use"})  # Pydantic AI's name for a tool that the server ran
        elif kind == "text":
            texts.append({"type": "text", "text": fields.get("content")})
        elif kind == "reasoning" or fields.get("thought") or "reasoningContent" in fields:
            thoughts += filter(None, [first_text(value_at(thought, ("content",)), value_at(thought, ("text",)))])
        elif kind == "tool_call" or isinstance(call, dict):
            calls.append(call or fields)
        elif kind == "tool_call_response" or isinstance(answer, dict):
            answer = answer if isinstance(answer, dict) else fields
            result = answer.get("response", answer.get("result"))
            if "toolResult" in fields:
                result = "\n".join(str(value_at(p, ("text",)) or dump(p)) for p in as_list(answer.get("content")))
            text = result if isinstance(result, str) or result is None else dump(result)
            call_id = answer.get("id", answer.get("toolUseId"))
            results.append({"role": "tool", "content": text, "tool_call_id": call_id})
        elif isinstance(fields.get("modality"), str):
            texts.append({"type": fields["modality"], "source": {"media_type": fields.get("mime_type")}})
        else:
            texts.append({"type": next(iter(fields))} if fields and not (kind or "text" in fields) else part)
    if results and not (texts or calls or thoughts):
        return results
    beside = {"reasoning": "\n".join(thoughts), "tool_calls": calls}
    beside |= {key: item[key] for key in ("name", "finish_reason", "tool_call_id") if isinstance(item.get(key), str)}
    message = {"role": _read_role(item), "content": texts or None} | {k: v for k, v in beside.items() if v}
    return [*results, message]


def _convert_fields(item: JSON) -> JSON:
    """Convert a message of OpenInference, OpenLLMetry or an event, which wraps its lists and calls in objects."""
    content = parse_text(item.get("content"))
    if not (isinstance(content, list) and content and all(value_at(part, ("type",)) in PART_TYPES for part in content)):
        content = item.get("content")  # a text that happens to be JSON
        content = content if isinstance(content, (str, list)) or content is None else dump(content)
    if isinstance(content, list):  # Pydantic AI's events name the type of a part `kind`
        content = [{"type": p.get("kind")} | p if isinstance(p, dict) and "kind" in p else p for p in content]
    if isinstance(item.get("contents"), list) and item["contents"]:
        parts = [part.get("message_content", part) if isinstance(part, dict) else part for part in item["contents"]]
        content = [{k: v for k, v in p.items() if k != "image"} if isinstance(p, dict) else p for p in parts]
    message = {"role": _read_role(item), "content": content}
    calls, function = parse_text(item.get("tool_calls")), item.get("function_call_name")
    if isinstance(calls, list) and calls:
        message["tool_calls"] = [call.get("tool_call", call) if isinstance(call, dict) else call for call in calls]
    elif isinstance(function, str):
        message["tool_calls"] = [{"name": function, "arguments": item.get("function_call_arguments_json")}]
    message |= {key: item[key] for key in ("name", "reasoning", "reasoning_content", "finish_reason")
                if isinstance(item.get(key), str)}  # fmt: skip
    answered = item.get("tool_call_id") or (item.get("id") if item.get("role") == "tool" else None)
    # A tool result becomes a tool message, even if it was logged in a user message, as for Anthropic's API.
    return message | ({"role": "tool", "tool_call_id": answered} if answered else {})


READER = call_reader("otel", recognises, read_call, unfold=unfold)
