"""Langfuse exports: observations of type GENERATION, one per line, or traces that hold their observations.

Fields are named as in Langfuse's public API (https://api.reference.langfuse.com, `Observation` and
`TraceWithFullDetails`) and its blob storage exports, in camel or snake case; `input` and `output` are objects or JSON
text. Spans, events, and traces whose input is not a list of messages are no model calls: they are counted and left out.
"""

import re
from collections.abc import Iterator
from typing import Any

from opdkit.chat.conversation import JSON
from opdkit.chat.messages import PART_TYPES, as_list, dump, first_text, read_tools
from opdkit.extract.formats.chains import NO_CALL, Call, call_reader, read_prompt, read_reply, require_prompt
from opdkit.extract.formats.feedback import add_feedback
from opdkit.extract.formats.items import is_call
from opdkit.extract.formats.otel import openai_messages, read_adk, read_event, read_span_tools
from opdkit.extract.formats.reader import LeftOut
from opdkit.extract.formats.spans import drop_empty, parse_text
from opdkit.extract.mapping import value_at

_KINDS = ("GENERATION", "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL")
_OF_TRACE = ("name", "scores", "metadata", "environment", "version")  # fields of a trace that apply to its observations
_KEPT = ("trace", "id", "name", "userId", "user_id", "metadata", "environment", "tags", "release", "version", "scores",
         "modelParameters", "model_parameters", "usage", "usageDetails", "usage_details")  # fmt: skip
_OF_MESSAGE = frozenset(("content", "finish_reason", "stop_reason", "reasoning", "reasoning_content", "refusal"))
_STRUCTURED = ("content", "message", "parts", "choices", "output", "tool_calls", "function_call", "additional_kwargs")
_FEEDBACK = re.compile("feedback|thumb", re.IGNORECASE)  # in names of scores by users; a `rating` may count stars
_EVALUATOR = "EVAL"  # source of scores that a model gave


def recognises(record: JSON) -> bool:
    """Return whether the record is an observation, a trace with fields that only Langfuse has, or a page of these."""
    for row in _split_page(record)[:5]:
        pieces, kind = value_at(row, ("observations",)), value_at(row, ("type",))
        if isinstance(pieces, list):
            own = any(isinstance(piece, dict) and piece.get("type") in _KINDS for piece in pieces[:5])
            if "id" not in row or not (own or "sessionId" in row or "projectId" in row):
                return False
        elif kind not in _KINDS or first_text(row.get("traceId"), row.get("trace_id")) is None:
            return False
    return True


def _split_page(record: JSON) -> list[Any]:
    """Return the rows of a page of the API; any other record as a list of one."""
    page = record.get("data")
    return page if isinstance(page, list) and page and "meta" in record else [record]


def unfold(record: JSON) -> list[JSON]:
    """Return the observations of a trace, each with the trace's session; for a page, those of all its rows.

    Each model call gets the other fields of its trace, or only the first call if the copies would outgrow the trace.
    `rated` holds the trace's scores of a call; those of no call in particular go to the call that starts last.
    """
    rows, unfolded = _split_page(record), list[JSON]()
    for row in rows if all(isinstance(row, dict) for row in rows) else [record]:
        # In a list of traces, the observations may be ids instead of objects.
        observations = [piece for piece in as_list(row.get("observations")) if isinstance(piece, dict)]
        shared = {key: row[key] for key in ("sessionId", "userId", "tags", "release") if row.get(key)}
        trace = {key: row[key] for key in _OF_TRACE if row.get(key)}
        pieces = [shared | piece for piece in observations]
        calls = [n for n, piece in enumerate(pieces) if piece.get("type", "GENERATION") == "GENERATION"]
        for n, scores in _group_scores(row.get("scores"), {n: pieces[n] for n in calls}).items():
            pieces[n] = pieces[n] | {"rated": scores}
        if calls and trace and len(calls) * len(dump(trace)) > len(dump(row)):
            calls = calls[:1]
        for n in calls if trace else ():
            pieces[n] = pieces[n] | {"trace": trace}
        unfolded += pieces or [row]
    return unfolded


def _group_scores(scores: Any, calls: dict[int, JSON]) -> dict[int, list[JSON]]:
    """Return a trace's scores by index of the call: the call that a score names, else the call that starts last."""
    if not calls:
        return {}
    last = max(calls, key=lambda n: first_text(calls[n].get("startTime"), calls[n].get("start_time")) or "")
    named = {name: n for n, call in calls.items() if (name := first_text(call.get("id"))) is not None}
    scores_of: dict[int, list[JSON]] = {}
    for score in as_list(scores):
        if isinstance(score, dict):
            name = first_text(score.get("observationId"), score.get("observation_id"))
            scores_of.setdefault(named.get(name or "", last), []).append(score)
    return scores_of


def _read_scores(record: JSON) -> Iterator[JSON]:
    """Yield the scores and comments that people gave to a call."""
    for score in (*as_list(record.get("scores")), *as_list(record.get("rated"))):
        if isinstance(score, dict) and score.get("source") != _EVALUATOR and _FEEDBACK.search(str(score.get("name"))):
            kind = first_text(score.get("dataType"), score.get("data_type"))
            category = first_text(score.get("stringValue"), score.get("string_value"))  # of a boolean: as text
            # The number of a category is its index in a list that is not logged, or 0 for all without such a list.
            rating = {"label": category} if kind == "CATEGORICAL" else {"score": score.get("value")}
            yield rating | {"comment": score.get("comment")}


def read_call(record: JSON) -> Call | LeftOut:
    """Read one generation. Raises Unreadable."""
    logged_input, output = parse_text(record.get("input")), parse_text(record.get("output"))
    output = output if _is_reply(output) else record.get("output")  # a text that happens to be JSON
    request: JSON = logged_input if isinstance(logged_input, dict) else {}
    span: JSON = {"gcp": {"vertex": {"agent": {"llm_request": request, "llm_response": output}}}}  # as Google's ADK
    items, output = read_adk(span) if "contents" in request else (request.get("messages", logged_input), output)
    if record.get("type", "GENERATION") != "GENERATION" or (
        "type" not in record and not (isinstance(items, list) and output)
    ):
        return LeftOut(NO_CALL)
    items = require_prompt(items, f"the input is {'a ' + type(items).__name__ if items else 'empty'}")
    if isinstance(output, dict) and "message" in output:  # an event
        items = [read_event(item) if isinstance(item, dict) else item for item in items]
        output = read_event(output)
    elif output and isinstance(output, list) and all(isinstance(part, dict) and "toolName" in part for part in output):
        output = {"tool_calls": output}  # of the AI SDK
    made = output if isinstance(output, list) else [output]
    if any(isinstance(item, dict) and ("parts" in item or "message" in item) for item in (*items, *made)):
        items, made = ([m for item in own for m in openai_messages(item)] for own in (items, made))
        output = made[0] if made else None
    definitions = [item["content"] for item in items if _is_tool_definition(item)]
    response = output if isinstance(output, dict) else {}  # of the Responses API: it repeats fields of the request
    offered = request.get("tools") or response.get("tools")
    tools = read_tools(offered) or read_tools(definitions) or read_span_tools(span)
    system = request.get("system") or request.get("instructions") or response.get("instructions")
    prompt = read_prompt([i for i in items if not _is_tool_definition(i)], system)
    # Items of the Responses API: a tool call, or a message in a list.
    kinds = ("call" if is_call(item) else item.get("type") for item in made if isinstance(item, dict))
    has_item = any(kind == "call" or (kind == "message" and made is output) for kind in kinds)
    reply, note = read_reply({"output": made} if has_item else output)
    if record.get("level") == "ERROR":
        note.skip_reason = "error"
    add_feedback(note, _read_scores(record))
    logged = drop_empty({key: record.get(key) for key in _KEPT}) | drop_empty({
        "trace_id": first_text(record.get("traceId"), record.get("trace_id")),
        "timestamp": first_text(record.get("startTime"), record.get("start_time"), record.get("timestamp")),
    })  # fmt: skip
    model = first_text(record.get("model"), record.get("provided_model_name"), record.get("providedModelName"))
    session = first_text(record.get("sessionId"), record.get("session_id"))
    return Call(prompt, reply, note, model=model, tools=tools, logged=logged, session=session)


def _is_reply(output: Any) -> bool:
    """Return whether an object or a list is a reply in one of the forms that `read_call` reads."""
    items = output if isinstance(output, list) else [output]
    return bool(items) and all(
        isinstance(item, dict)
        and (item.get("type") in PART_TYPES or {"content"} <= item.keys() <= _OF_MESSAGE or "toolName" in item
             or item.get("role") in ("assistant", "model")
             or any(isinstance(parse_text(item.get(key)), (dict, list)) for key in _STRUCTURED))
        for item in items
    )  # fmt: skip


def _is_tool_definition(item: Any) -> bool:
    """Return whether a message defines a tool. Langfuse's LangChain callback logs definitions as tool messages."""
    content = item.get("content") if isinstance(item, dict) and item.get("role") == "tool" else None
    return isinstance(content, dict) and content.get("type") == "function" and isinstance(content.get("function"), dict)


READER = call_reader("langfuse", recognises, read_call, unfold=unfold)
