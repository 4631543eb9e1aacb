"""Langfuse exports: observations of type GENERATION, one a line, or traces that hold their observations.

Fields as Langfuse's public interface (https://api.reference.langfuse.com, `Observation` and `TraceWithFullDetails`) and
its exports to blob storage name them, in camel or in snake case; `input` and `output` as objects or as JSON text. Each
generation is one call of a model with its whole prompt: sessions are put together by chains.py, under the
session id, where the rows have one, else by how their prompts begin. Spans, events, and traces whose input is no list
of messages called no model: they are counted and left out.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from opdkit.chat.conversation import JSON, LEFT_OUT, Conversation, Note, Unreadable
from opdkit.chat.messages import dump, read_messages, read_tools
from opdkit.extract.formats.chains import Call, read_chains, unit_of
from opdkit.extract.formats.reader import LeftOut, Line, Reader, Rejected
from opdkit.extract.formats.spans import parsed

NO_CALL = f"{LEFT_OUT}no model call"
_KINDS = frozenset(("GENERATION", "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING",
                    "GUARDRAIL"))  # fmt: skip
_MODELS = ("model", "provided_model_name", "providedModelName")
_SAID = {"content", "tool_calls", "function_call", "additional_kwargs"}
# What is said of a trace and holds for its observations: people's feedback is among its scores.
_OF_A_TRACE = ("name", "scores", "metadata", "environment", "version")
_KEPT = ("trace", "id", "name", "userId", "user_id", "metadata", "environment", "tags", "release", "version", "scores",
         "modelParameters", "model_parameters", "usage", "usageDetails", "usage_details")  # fmt: skip


def recognises(record: JSON) -> bool:
    """An observation, or a trace with what Langfuse alone calls it."""
    if isinstance(record.get("observations"), list):
        return "id" in record and ("sessionId" in record or "projectId" in record or _are_ours(record["observations"]))
    kind = record.get("type")
    return isinstance(kind, str) and kind in _KINDS and _one(record, "traceId", "trace_id") is not None


def _are_ours(observations: list[Any]) -> bool:
    return any(isinstance(o, dict) and o.get("type") in tuple(_KINDS) for o in observations[:5])


def unfold(record: JSON) -> list[JSON]:
    """The observations of a trace, each with the trace's session; a page of the interface, row by row."""
    data = record.get("data")
    if isinstance(data, list) and data and "meta" in record and all(isinstance(row, dict) for row in data):
        return [piece for row in data for piece in unfold(row)]
    observations = record.get("observations")
    if not isinstance(observations, list) or not any(isinstance(o, dict) for o in observations):
        return [record]  # of a trace alone, the observations may be ids
    shared = {key: record[key] for key in ("sessionId", "userId", "tags", "release") if record.get(key)}
    trace = {key: record[key] for key in _OF_A_TRACE if record.get(key)}
    pieces = [shared | o for o in observations if isinstance(o, dict)]
    return _with_trace(pieces, trace, len(dump(record))) if trace else pieces


def _with_trace(pieces: list[JSON], trace: JSON, size: int) -> list[JSON]:
    """The trace with each of its observations; with the first alone where that would more than double the line."""
    calls = [n for n, piece in enumerate(pieces) if piece.get("type", "GENERATION") == "GENERATION"]
    told = set(calls if len(calls) * len(dump(trace)) <= size else calls[:1])
    return [piece | {"trace": trace} if n in told else piece for n, piece in enumerate(pieces)]


def id_of(record: JSON) -> str | None:
    call = _call(record)
    return unit_of(call) if isinstance(call, Call) else None


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected | LeftOut]:
    """All generations of one session -> its conversations."""
    return read_chains(unit, _call)


def _one(record: JSON, *keys: str) -> str | None:
    """The first of these fields that is a text."""
    return next((record[k] for k in keys if isinstance(record.get(k), str) and record[k]), None)


def _call(record: JSON) -> Call | LeftOut:
    asked, answered = parsed(record.get("input")), parsed(record.get("output"))
    inside: JSON = asked if isinstance(asked, dict) else {}
    items = inside.get("messages", asked)
    if record.get("type", "GENERATION") != "GENERATION" or (
        "type" not in record and not (isinstance(items, list) and answered)
    ):
        return LeftOut(NO_CALL)
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if isinstance(items, dict) and "role" in items:
        items = [items]
    if not isinstance(items, list) or not items:
        raise Unreadable("no messages", f"the input is {'empty' if not items else 'a ' + type(items).__name__}")
    definitions = [_definition(item) for item in items]
    tools = read_tools(inside.get("tools")) or read_tools([found for found in definitions if found])
    prompt, _ = read_messages([item for item, found in zip(items, definitions, strict=True) if not found])
    system = inside.get("system")
    if isinstance(system, str) and system:
        prompt = read_messages([{"role": "system", "content": system}])[0] + prompt
    (reply, *_), notes = read_messages([_reply(answered)])
    note = notes.get(0) or Note()
    if record.get("level") == "ERROR":
        note.skip_reason = "error"
    logged = {key: record[key] for key in _KEPT if record.get(key) not in (None, "", [], {})}
    beside = {"trace_id": _one(record, "traceId", "trace_id"),
              "timestamp": _one(record, "startTime", "start_time", "timestamp")}  # fmt: skip
    logged |= {key: value for key, value in beside.items() if value}
    return Call(
        prompt,
        reply,
        note,
        model=_one(record, *_MODELS),
        tools=tools,
        logged=logged,
        session=_one(record, "sessionId", "session_id"),
    )


def _definition(item: Any) -> JSON | None:
    """The definition of a tool, which the callback for LangChain logs as a message of role tool."""
    content = item.get("content") if isinstance(item, dict) and item.get("role") == "tool" else None
    if isinstance(content, dict) and content.get("type") == "function" and isinstance(content.get("function"), dict):
        return content
    return None


def _reply(answered: Any) -> JSON:
    """The output as one message: a text, a message, a list of one, a response with choices."""
    if isinstance(answered, dict) and isinstance(answered.get("choices"), list) and answered["choices"]:
        first = answered["choices"][0]
        answered = first.get("message", first) if isinstance(first, dict) else None
    if isinstance(answered, list) and answered:
        parts = all(isinstance(p, dict) and "type" in p and "role" not in p for p in answered)
        answered = {"content": answered} if parts else answered[-1]
    if isinstance(answered, str):
        answered = {"content": answered}
    if not isinstance(answered, dict) or not _SAID & answered.keys():
        raise Unreadable("no reply", "the output is no message")
    return answered | {"role": "assistant"}


READER = Reader("langfuse", "id", recognises, read, id_of=id_of, unfold=unfold)
