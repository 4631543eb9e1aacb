"""Runs of LangSmith, one per line, as in `Client.list_runs` and exports. Children may be nested in `child_runs`.

A run of type `llm` is one model call. Its messages are serialised LangChain messages, or those of a provider.
"""

from collections.abc import Iterator
from typing import Any

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.chat.messages import as_list, dump, first_text, read_tools
from opdkit.extract.formats.chains import NO_CALL, Call, call_reader, read_prompt, read_reply, require_prompt
from opdkit.extract.formats.feedback import add_feedback
from opdkit.extract.formats.items import has_items
from opdkit.extract.formats.reader import LeftOut
from opdkit.extract.formats.spans import drop_empty, parse_text
from opdkit.extract.mapping import value_at

_ROLES = {"human": "user", "ai": "assistant", "aimessagechunk": "assistant", "humanmessagechunk": "user"}
_THREAD = ("session_id", "thread_id", "conversation_id")
_MODELS = ("model", "auto_eval")  # sources of feedback that are not people
_FEEDBACK = ("feedback", "feedback_stats")
_KEPT = ("id", "name", "trace_id", "parent_run_id", "start_time", "tags", *_FEEDBACK)


def recognises(record: JSON) -> bool:
    """Return whether the record is a run, or a page of runs."""
    page = record.get("runs")
    if isinstance(page, list) and page and isinstance(page[0], dict):
        record = page[0]
    return "run_type" in record and "inputs" in record and ("trace_id" in record or "dotted_order" in record)


def unfold(record: JSON) -> list[JSON]:
    """Return the runs of a page and all runs below them. Feedback on a whole trace is added to its last model call.

    Raises Unreadable.
    """
    runs: list[JSON] = []
    for root in as_list(record.get("runs")) or [record]:
        tree, stack = [], [root]
        while stack:  # each run comes before the runs below it
            run = stack.pop()
            if not isinstance(run, dict):
                raise Unreadable("run of unknown shape", f"it is a {type(run).__name__}")
            stack += reversed(as_list(run.get("child_runs")))
            tree.append(run | {"child_runs": None} if run.get("child_runs") else run)
        calls = [n for n, run in enumerate(tree) if run.get("run_type") == "llm"]
        if calls and calls[-1] > 0:
            last = tree[calls[-1]]
            given, stats = ([parse_text(run.get(key)) for run in (last, root)] for key in _FEEDBACK)
            entries = [entry for own in given for entry in as_list(own)]
            means = {name: own[name] for own in stats if isinstance(own, dict) for name in own}
            feedback = zip(_FEEDBACK, (entries, means), strict=True)
            tree[calls[-1]] = last | {key: value for key, value in feedback if value}
        runs += tree
    return runs


def read_call(record: JSON) -> Call | LeftOut:
    """Read one run. Raises Unreadable."""
    if record.get("run_type") != "llm":
        return LeftOut(NO_CALL)
    inputs, outputs = parse_text(record.get("inputs")), parse_text(record.get("outputs"))
    items = value_at(inputs, ("messages",)) or value_at(inputs, ("prompts",)) or value_at(inputs, ("input",))
    if isinstance(items, list) and len(items) == 1 and isinstance(items[0], list):
        items = items[0]  # a batch of one prompt
    items = require_prompt(items, "nothing in inputs.messages")
    items = items if has_items(items) else [openai_message(item) for item in items]
    # OpenAI's Responses API has `instructions`, Anthropic's API has `system`.
    given = [value_at(holder, (name,)) for holder in (inputs, outputs) for name in ("instructions", "system")]
    prompt = read_prompt(items, next(filter(None, given), None))
    generation = value_at(outputs, ("generations", 0))
    generation = generation[0] if isinstance(generation, list) and generation else generation
    output = value_at(generation, ("message",)) or value_at(generation, ("text",)) or value_at(outputs, ("message",))
    if not output and not (isinstance(outputs, dict) and outputs):
        raise Unreadable("no reply", first_text(record.get("error")) or "the run has no output")
    message = openai_message(output) if output else outputs
    reply, note = read_reply(message)
    note.finish_reason = note.finish_reason or first_text(value_at(generation, ("generation_info", "finish_reason")))
    if record.get("error"):
        note.skip_reason = "error"
    add_feedback(note, _read_feedback(record))
    extra = parse_text(record.get("extra"))
    metadata, parameters = value_at(extra, ("metadata",)), value_at(extra, ("invocation_params",))
    logged = drop_empty({key: record.get(key) for key in _KEPT} | {"metadata": metadata})
    offered = (value_at(holder, ("tools",)) for holder in (parameters, inputs, outputs))
    tools = read_tools(next(filter(None, offered), None))
    models = ((metadata, "ls_model_name"), (parameters, "model"), (parameters, "model_name"), (inputs, "model"))
    model = first_text(*(value_at(holder, (name,)) for holder, name in models))
    session = first_text(*(value_at(metadata, (name,)) for name in _THREAD))
    return Call(prompt, reply, note, model=model, tools=tools, logged=logged, session=session)


def openai_message(item: Any) -> JSON:
    """Return a LangChain message, in any of its serialised forms, in OpenAI's form. Raises Unreadable."""
    if isinstance(item, str):
        return {"role": "user", "content": item}
    if not isinstance(item, dict):
        raise Unreadable("message is not an object", f"it is a {type(item).__name__}")
    fields = next((item[key] for key in ("kwargs", "data") if isinstance(item.get(key), dict)), item)
    name, path = fields.get("type"), item.get("id")
    if item.get("lc") is None:
        name = name or item.get("type")
    elif name is None and isinstance(path, list) and path:  # the outer type says only that it is serialised
        name = str(path[-1]).removesuffix("Chunk").removesuffix("Message").lower()
    if "role" in fields:
        return fields
    kind = name.lower() if isinstance(name, str) else ""
    message = {"role": _ROLES.get(kind, kind), "content": fields.get("content")}
    calls = as_list(fields.get("tool_calls")) + as_list(fields.get("invalid_tool_calls"))
    if calls:
        message["tool_calls"] = calls
    message |= {key: fields[key] for key in ("additional_kwargs", "name", "tool_call_id") if fields.get(key)}
    reasons = [value_at(fields, ("response_metadata", key)) for key in ("finish_reason", "stop_reason")]
    return message | ({"finish_reason": reason} if (reason := first_text(*reasons)) else {})


def _read_feedback(record: JSON) -> Iterator[JSON]:
    """Yield the feedback on a run that came from people, not from models."""
    given, stats = (parse_text(record.get(key)) for key in _FEEDBACK)
    for entry in as_list(given):
        if isinstance(entry, dict) and value_at(entry, ("feedback_source", "type")) not in _MODELS:
            yield {"name": entry.get("key"), "score": entry.get("score"), "label": entry.get("value"),
                   "comment": entry.get("comment"), "edited": entry.get("correction")}  # fmt: skip
    for name, entry in stats.items() if isinstance(stats, dict) and not given else ():
        sources = value_at(entry, ("sources",))
        texts = [source if isinstance(source, str) else dump(source) for source in as_list(sources)]
        if isinstance(entry, dict) and not any(f'"{source}"' in text for text in texts for source in _MODELS):
            comments = value_at(entry, ("comments",))
            yield {"name": name, "score": entry.get("avg")}
            yield from ({"comment": comment} for comment in as_list(comments))


READER = call_reader("langsmith", recognises, read_call, unfold=unfold)
