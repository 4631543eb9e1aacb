"""Tests of the Langfuse and OpenTelemetry readers, which join calls that repeat the conversation so far."""

import json
from pathlib import Path

import pytest
from small_logs import jsonl, run, tables

from opdkit.chat.conversation import JSON, Conversation, Unreadable
from opdkit.chat.openai_messages import read_tool_definitions
from opdkit.config.conditions import find_rejection, parse_filters
from opdkit.extract.formats import READERS, chains
from opdkit.extract.formats.chains import NO_CALL
from opdkit.extract.formats.detect import detect
from opdkit.extract.formats.json_lines import find_id
from opdkit.extract.formats.otel import NOT_OF_CALL
from opdkit.extract.formats.reader import LeftOut, Line, Rejected
from opdkit.extract.formats.spans import nest_attributes, read_otlp_value
from opdkit.extract.inputs.index import unfold_line

U, A, V = ({"role": r, "content": c} for r, c in (("user", "u"), ("assistant", "a"), ("user", "no")))
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}


def observation(prompt, reply, **more) -> dict:
    return {"id": "o", "traceId": "t", "type": "GENERATION", "name": "chat", "model": "gpt-4o", "input": prompt,
            "output": reply, "startTime": "2026-01-02T03:04:05Z", **more}  # fmt: skip


def read(name: str, *records) -> list[Conversation | Rejected | LeftOut]:
    return list(READERS[name].read([Line("log", n, json.dumps(r).encode()) for n, r in enumerate(records, 1)]))


def said(session: Conversation) -> list:
    return [(m["role"], m["content"]) for m in session.messages]


def extracted(tmp_path: Path, *records) -> dict[str, list[dict]]:
    run(tmp_path / "run", jsonl(tmp_path / "log.jsonl", *records), part_mb=1e-6)
    return tables(tmp_path / "run")


# -- Langfuse --------------------------------------------------------------------------------------------------------


def test_generations_of_one_conversation_become_one_session_whatever_their_traces(tmp_path):
    """Without session ids, calls are found to continue each other by their prompts, even across traces."""
    rows = [observation([U], A), {"type": "SPAN", "traceId": "t", "input": None}, observation({"messages": [U, A, V],
            "tools": [{"name": "find"}]}, {"role": "assistant", "content": None, "tool_calls": [CALL]}, traceId="t2"),
            observation([{"role": "user", "content": "else"}], "x", traceId="t3")]  # fmt: skip
    found = extracted(tmp_path, *rows)
    assert [s["session_id"][:5] for s in found["sessions"]] == ["log:~"] * 2
    session = found["sessions"][0]
    assert [(m["role"], m["content"]) for m in session["messages"]] == [
        ("user", "u"), ("assistant", "a"), ("user", "no"), ("assistant", None)]  # fmt: skip
    assert session["messages"][3]["tool_calls"][0]["arguments"] == '{"q": 1}'
    assert (session["model"], json.loads(session["tools"])) == ("gpt-4o", [{"name": "find"}])
    records = json.loads(session["metadata"])["records"]
    assert [(r["line"], r["trace_id"]) for r in records] == [(1, "t"), (3, "t2")]
    assert [t["skip_reason"] for t in found["turns"]] == [None, "no next state", "no next state"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_reply_counts_in_the_branch_that_goes_on(tmp_path, order: int):
    """A call for a title repeats the conversation, but its request is no reaction, in either logging order."""
    title, thanks = ({"role": "user", "content": text} for text in ("Write a title.", "Thanks."))
    branches = [observation([U, A, title], "T", id="o1"), observation([U, A, V], "b", id="o2"),
                observation([U, A, V, {"role": "assistant", "content": "b"}, thanks], "c", id="o3")]  # fmt: skip
    found = extracted(tmp_path, observation([U], A), *branches[::order])
    talks = {s["session_id"]: [m["content"] for m in s["messages"]] for s in found["sessions"]}
    trainable = [talks[t["session_id"]][t["message_index"] :] for t in found["turns"] if t["trainable"]]
    assert trainable == [["a", "no", "b", "Thanks.", "c"], ["b", "Thanks.", "c"]]


def test_each_call_of_a_log_with_many_branches_is_read_twice(monkeypatch):
    """A call is parsed once to link it and once for its conversations, which hold the earlier replies as logged."""
    lines, parse_line = [], chains.parse
    monkeypatch.setattr(chains, "parse", lambda line: lines.append(line.number) or parse_line(line))
    asked, calls = [U], []
    for n in range(20):
        reply = {"role": "assistant", "content": f"a{n}", "tool_calls": [CALL]}
        calls.append(observation(asked, reply, usage=n))
        asked = [*asked, {**reply, "tool_calls": [{**CALL, "id": f"later {n}"}]}]
        calls.append(observation([*asked, V], f"title {n}"))
        asked = [*asked, {"role": "user", "content": f"u{n}"}]
    found = read("langfuse", *calls)
    assert sorted(lines) == sorted([*range(1, 41)] * 2)
    last = next(c for c in found if said(c)[-1] == ("assistant", "title 19"))
    replies = [m for m in last.messages if m["role"] == "assistant"]
    assert [m["content"] for m in replies] == [*(f"a{n}" for n in range(20)), "title 19"]
    assert [m["tool_calls"][0]["id"] for m in replies[:-1]] == [f"later {n}" for n in range(20)]
    assert [r["line"] for r in last.metadata["records"]] == [*range(1, 41, 2), 40]


def test_a_span_that_called_no_model_is_counted_and_left_out(tmp_path):
    rows = [observation([U, A, V], "b"), *[{"type": "SPAN", "traceId": "t", "input": "x"}] * 9]
    log = jsonl(tmp_path / "log.jsonl", *rows, observation([U], A))
    summary = run(tmp_path / "run", log)
    assert summary.counters.dropped == {"left out: no model call": 9}
    assert "log sessions unread" not in summary.counters.counts


def test_a_trace_holds_its_observations_and_their_session(tmp_path):
    trace = {"id": "t", "sessionId": "s1", "userId": "ann", "input": "x", "observations": [
        observation([U], A), {"type": "EVENT", "traceId": "t"}]}  # fmt: skip
    later = {"id": "t2", "sessionId": "s1", "observations": [observation([U, A, V], "b")]}
    found = extracted(tmp_path, trace, later)
    (session,) = found["sessions"]
    assert (session["session_id"], session["line"], len(session["messages"])) == ("log:s1", 1, 4)
    records = json.loads(session["metadata"])["records"]
    assert [(r["line"], r.get("userId")) for r in records] == [(1, "ann"), (2, None)]


def scored(n: int, feedback: int, *observations: dict, **more) -> dict:
    scores = [{"id": "x", "name": "user-feedback", "value": feedback, "comment": "why"}]
    return {"id": f"t{n}", "sessionId": "s1", "scores": scores, "observations": list(observations), **more}


def test_what_people_said_of_a_trace_is_kept_with_its_calls(tmp_path):
    """`--filter` can use such fields: a session is kept if the condition holds for one of its calls."""
    traces = [scored(1, 0, {"type": "SPAN", "traceId": "t"}, observation([U], A), metadata={"shop": 7}),
              scored(2, 1, observation([U, A, V], "b"))]  # fmt: skip
    found = extracted(tmp_path, *traces)
    (session,) = found["sessions"]
    kept = json.loads(session["metadata"])["records"]
    assert [(r["message_index"], r["trace"]["scores"][0]["value"]) for r in kept] == [(1, 0), (3, 1)]
    assert kept[0]["trace"]["metadata"] == {"shop": 7}
    (conversation,) = read("langfuse", *(piece for trace in traces for piece in READERS["langfuse"].unfold(trace)[-1:]))
    for condition, holds in {
        "metadata.trace.scores.user-feedback=1": True, "metadata.trace.scores.user-feedback>1": False,
        "metadata.trace.scores.stars=1": False, "metadata.trace.metadata.shop=7": True,
    }.items():  # fmt: skip
        assert (find_rejection(parse_filters([condition]), conversation, "langfuse") is None) == holds


def decisions(*records: dict) -> list[dict | None]:
    """Return the decisions about the replies of a trace, in the order of the session."""
    (session,) = read("langfuse", *(piece for record in records for piece in READERS["langfuse"].unfold(record)))
    return [session.notes[i].decision if i in session.notes else None
            for i, message in enumerate(session.messages) if message["role"] == "assistant"]  # fmt: skip


@pytest.mark.parametrize(("score", "decided"), [
    ({"name": "user-feedback", "value": 0, "comment": "too long"}, {"rating": -1, "comment": "too long"}),
    ({"name": "User_Feedback", "value": 1, "dataType": "BOOLEAN", "stringValue": "True"}, {"rating": 1}),
    ({"name": "thumb", "dataType": "CATEGORICAL", "value": 1, "stringValue": "down"}, {"rating": -1, "tags": ["down"]}),
    ({"name": "thumb", "dataType": "CATEGORICAL", "value": 0, "stringValue": "up"}, {"rating": 1, "tags": ["up"]}),
    ({"name": "user-feedback", "value": 0.85, "comment": "fine"}, {"comment": "fine"}),
    ({"name": "user-feedback", "value": 1, "source": "EVAL", "comment": "by a model"}, None),
    ({"name": "toxicity", "value": 1, "source": "ANNOTATION"}, None),
    ("c2d1", None), ({"name": ["feedback"], "value": {}}, None),
])  # fmt: skip
def test_a_score_named_feedback_decides_about_the_last_reply_of_its_trace(score, decided):
    """The last reply is the one that the user saw. The calls may be logged in any order."""
    calls = [observation([U, A, V], "b", id="o2", startTime="2026-01-02T03:04:06Z"), observation([U], A, id="o1")]
    first, last = decisions({"id": "t", "sessionId": "s", "scores": [score], "observations": calls})
    assert first is None
    assert (last and {name: value for name, value in last.items() if value}) == decided


def test_a_score_of_a_call_decides_about_its_reply():
    calls = [observation([U], A, id="o1"), observation([U, A, V], "b", id="o2", startTime="2026-01-02T03:04:06Z")]
    score = {"name": "user-feedback", "value": 1, "observationId": "o1"}
    first, last = decisions({"id": "t", "sessionId": "s", "scores": [score], "observations": calls})
    assert (first["rating"], last) == (1, None)
    (alone,) = decisions(observation([U], A, scores=[score]))
    assert alone["rating"] == 1


@pytest.mark.parametrize(("replies", "scores", "kept"), [
    (("a", "b", "c"), (1, 0, 1), [("a", 1), ("b", -1), ("c", 1)]),
    (("a", "a", "a"), (1, 0, 1), [("a", 1), ("a", -1)]),
    (("a", "a", "a"), (None, 0, None), [("a", -1)]),
    (("a", "b"), (None, 1), [("b", 1)]),
])  # fmt: skip
def test_rated_replies_of_several_users_to_one_question_are_all_kept(tmp_path, replies, scores, kept):
    """Without session ids, calls of several users form one group; another reply or rating is no retry and no repeat."""
    traces = [
        {"id": f"t{n}", "projectId": "p", "userId": f"u{n}", "observations": [observation([U], text, id=n)],
         "scores": [] if score is None else [{"name": "user-feedback", "value": score}]}
        for n, (text, score) in enumerate(zip(replies, scores, strict=True))
    ]  # fmt: skip
    found = extracted(tmp_path, *traces)
    texts = {s["session_id"]: s["messages"][1]["content"] for s in found["sessions"]}
    trainable = [(texts[t["session_id"]], t["decision"]["rating"]) for t in found["turns"] if t["trainable"]]
    assert sorted(trainable) == sorted(kept)
    assert len(found["rejected"]) + len(found["turns"]) == len(traces)


def test_of_two_exports_of_one_call_the_later_rating_counts(tmp_path):
    traces = [{"id": "t", "projectId": "p", "observations": [observation([U], A)],
               "scores": [{"name": "user-feedback", "value": value}]} for value in (0, 1)]  # fmt: skip
    found = extracted(tmp_path, *traces)
    assert [turn["decision"]["rating"] for turn in found["turns"]] == [1]
    assert [row["line"] for row in found["rejected"]] == [1]


def test_a_long_trace_does_not_multiply():
    calls = [observation([{"role": "user", "content": f"u{n}"}], A) for n in range(50)]
    pieces = READERS["langfuse"].unfold(scored(1, 0, *calls, metadata={"shop": "x" * 10_000}))
    assert ["trace" in piece for piece in pieces] == [True] + 49 * [False]


def test_an_agent_of_langchain_is_one_session():
    """LangChain's callback logs tool definitions as messages, and calls in the message's `additional_kwargs`."""
    weather = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    call = {"role": "assistant", "content": "", "additional_kwargs": {"tool_calls": [CALL]}}
    result, definition = {"role": "tool", "content": "rain", "tool_call_id": "c1"}, {"role": "tool", "content": weather}
    (session,) = read("langfuse", observation([U, definition], call), observation([U, call, result, definition], A))
    assert said(session) == [("user", "u"), ("assistant", ""), ("tool", "rain"), ("assistant", "a")]
    assert session.messages[1]["tool_calls"] == [{"id": "c1", "name": "find", "arguments": '{"q": 1}'}]
    assert json.loads(session.tools) == [weather]
    assert [note.skip_reason for note in session.notes.values()] == [None, None]


def test_instructions_and_tools_may_be_in_the_response_alone():
    tool = {"type": "function", "name": "find", "parameters": {}}
    items = [A | {"type": "message", "content": [{"type": "output_text", "text": "a"}]}]
    response = {"object": "response", "instructions": "Be brief.", "tools": [tool], "output": items}
    run_ = {"id": "r", "trace_id": "r", "run_type": "llm", "name": "m", "inputs": {"input": [U]}, "outputs": response}
    for name, record in (("langfuse", observation([U], response)), ("langsmith", run_)):
        (session,) = read(name, record)
        assert said(session) == [("system", "Be brief."), ("user", "u"), ("assistant", "a")]
        assert [one["name"] for one in json.loads(session.tools)] == ["find"]


def test_the_reasoning_of_a_response_in_langfuse_is_thinking():
    items = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, A | {"type": "message"}]
    (session,) = read("langfuse", observation([U], items))
    assert (session.messages[-1]["content"], session.messages[-1]["reasoning"]) == ("a", "hm")


@pytest.mark.parametrize(("prompt", "reply", "expected"), [
    ("u", "a", [("user", "u"), ("assistant", "a")]),
    (json.dumps([U]), json.dumps(A), [("user", "u"), ("assistant", "a")]),
    ({"messages": [U], "system": "s"}, [A], [("system", "s"), ("user", "u"), ("assistant", "a")]),
    ([U], {"choices": [{"message": A}]}, [("user", "u"), ("assistant", "a")]),
    ([U], [{"type": "text", "text": "a"}], [("user", "u"), ("assistant", "a")]),
    ([{"role": "user", "parts": [{"type": "text", "content": "u"}]}],
     [{"role": "assistant", "parts": [{"type": "text", "content": "a"}]}], [("user", "u"), ("assistant", "a")]),
    ([{"message": U}], [{"message": A}], [("user", "u"), ("assistant", "a")]),
    ([U | {"event.name": "gen_ai.user.message"}], {"index": 0, "message": A}, [("user", "u"), ("assistant", "a")]),
    ([U | {"content": '[{"text": "u"}]'}], {"message": '[{"text": "a"}]'}, [("user", "u"), ("assistant", "a")]),
    ([U, {"type": "reasoning", "summary": []},
      {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c", "output": "7"}],
     [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
      {"type": "function_call", "name": "g", "call_id": "d", "arguments": "{}"}],
     [("user", "u"), ("assistant", None), ("tool", "7"), ("assistant", "a")]),
    ("[not json", "{either", [("user", "[not json"), ("assistant", "{either")]),
    *(([U], text, [("user", "u"), ("assistant", text)]) for text in (  # replies that are JSON
        '["red", "blue"]', '{"answer": 42}', '[{"name": "red"}]', '{"content": "x", "title": "y"}', "[]", "{}",
        '[{"type": "colour", "name": "red"}]', '{"type": ["string", "null"], "title": "Name"}', '{"message": "hello"}',
        '{"role": "engineer", "name": "Bob"}')),
])  # fmt: skip
def test_inputs_and_outputs_of_every_shape(prompt, reply, expected):
    (session,) = read("langfuse", observation(prompt, reply))
    assert said(session) == expected


@pytest.mark.parametrize("call", [
    {"toolCallType": "function", "toolCallId": "c1", "toolName": "find", "args": '{"q": 1}'},
    {"type": "tool-call", "toolCallId": "c1", "toolName": "find", "input": '{"q": 1}'},
])  # fmt: skip
def test_calls_of_the_ai_sdk_as_langfuse_takes_them_from_its_spans(call):
    """Langfuse's `OtelIngestionProcessor` keeps calls of SDK versions 4 and 5 alone, or as JSON text beside a text."""
    alone, beside = json.dumps([call]), json.dumps(A | {"tool_calls": json.dumps([call])})
    for output, text in ((alone, None), (beside, "a")):
        (session,) = read("langfuse", observation([U], output))
        assert session.messages[1]["content"] == text
        assert session.messages[1]["tool_calls"] == [{"id": "c1", "name": "find", "arguments": '{"q": 1}'}]


@pytest.mark.parametrize("output", [
    [{"role": "assistant", "parts": [{"type": "text", "content": "a"}], "finish_reason": "length"}],
    {"message": json.dumps(A), "finish_reason": "length"},
])  # fmt: skip
def test_the_finish_reason_of_opentelemetry_in_langfuse(output):
    (session,) = read("langfuse", observation([U], output))
    assert session.notes[1].finish_reason == "length"


def test_generations_that_cannot_be_told():
    items = read("langfuse", observation(None, "a"), observation([U], None), observation([U], 7), observation([7], "a"),
                 observation([U], A, level="ERROR"))  # fmt: skip
    assert [i.reason for i in items[:4]] == ["no messages", "no reply", "no reply", "message is not an object"]
    assert items[4].notes[1].skip_reason == "error"


# -- OpenTelemetry -----------------------------------------------------------------------------------------------------


def flat(prompt: list[dict], reply: dict) -> dict:
    """Return OpenInference's attributes of a call, flattened as they are exported."""
    found = {"openinference.span.kind": "LLM", "llm.model_name": "m", "session.id": "s1",
             "llm.tools.0.tool.json_schema": '{"name": "find"}'}  # fmt: skip
    for name, messages in (("llm.input_messages", prompt), ("llm.output_messages", [reply])):
        for i, message in enumerate(messages):
            found |= {f"{name}.{i}.message.{key}": value for key, value in message.items()}
    return found


CALLING = {"role": "assistant", "tool_calls.0.tool_call.id": "c1", "tool_calls.0.tool_call.function.name": "find",
           "tool_calls.0.tool_call.function.arguments": '{"q": 1}'}  # fmt: skip
RESULT = {"role": "tool", "content": "found", "tool_call_id": "c1"}


def span(attributes, **more) -> dict:
    return {"name": "chat", "context": {"trace_id": "t", "span_id": "x"}, "start_time": "2026-01-02T03:04:05Z",
            "attributes": attributes, **more}  # fmt: skip


def test_seconds_and_nanoseconds_are_a_time():
    (session,) = read(
        "otel", {"name": "chat", "traceId": "t", "startTime": [1700000000, 5], "attributes": flat([U], A)}
    )
    for condition, holds in (("time>=2023-11-14", True), ("time>=2023-11-15", False)):
        assert (find_rejection(parse_filters([condition]), session, "otel") is None) == holds


def test_a_text_that_happens_to_be_a_list_of_objects_stays_a_text():
    """Only content parts of the APIs are read as parts."""
    asked, answered = '[{"type":"click","x":1},{"type":"scroll","y":2}]', '[{"type":"person","name":"Bob"}]'
    (session,) = read("otel", span(flat([U | {"content": asked}], A | {"content": answered})))
    assert said(session) == [("user", asked), ("assistant", answered)]
    assert session.notes == {} or session.notes[1].skip_reason is None
    columns = '[{"name": "a", "type": ["string", "null"]}]'
    (session,) = read("otel", span(flat([U, CALLING, RESULT | {"content": columns}], A)))
    assert said(session)[2] == ("tool", columns)


def test_arguments_and_schemas_that_are_objects_keep_their_keys():
    arguments = [{"file.path": "x", "0": 1}, {"0": "a", "1": "b"}, {"files": {"src/app.py": {"a.b": 1}}}]
    calls = [{"type": "tool_call", "id": str(n), "name": "f", "arguments": a} for n, a in enumerate(arguments)]
    schema = {"type": "object", "properties": {"file.path": {"type": "string"}, "0": {"type": "string"}}}
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": [U],
                  "gen_ai.output.messages": [{"role": "assistant", "parts": calls}],
                  "gen_ai.tool.definitions": [{"type": "function", "name": "f", "parameters": schema}]}  # fmt: skip
    (session,) = read("otel", span(attributes))
    assert [json.loads(call["arguments"]) for call in session.messages[1]["tool_calls"]] == arguments
    assert json.loads(session.tools)[0]["parameters"] == schema


def test_a_model_in_the_prompt_is_the_assistant():
    """Google's name of the role, in OpenInference's messages."""
    (session,) = read("otel", span(flat([U, {"role": "model", "content": "a"}, V], A)))
    assert [role for role, _ in said(session)] == ["user", "assistant", "user", "assistant"]


def as_otlp(attributes: dict) -> list[dict]:
    return [{"key": k, "value": {"stringValue": v}} for k, v in attributes.items()]


def nested(attributes: dict) -> dict:
    return nest_attributes({"attributes": attributes})


@pytest.mark.parametrize("form", [dict, as_otlp, nested])
def test_openinference_however_it_is_exported(form):
    first, second = flat([U], CALLING), flat([U, CALLING, RESULT], A)
    (session,) = read("otel", span(form(first)), span(form(second)))
    assert said(session) == [("user", "u"), ("assistant", None), ("tool", "found"), ("assistant", "a")]
    assert session.messages[1]["tool_calls"] == [{"id": "c1", "name": "find", "arguments": '{"q": 1}'}]
    assert session.messages[2]["tool_call_id"] == "c1"
    assert (session.model, session.tools, session.metadata["session_id"]) == ("m", '[{"name":"find"}]', "s1")
    assert session.metadata["records"][0] == {"line": 1, "name": "chat", "trace_id": "t", "span_id": "x",
                                              "timestamp": "2026-01-02T03:04:05Z", "message_index": 1}  # fmt: skip


def test_columns_of_phoenix():
    row = {"name": "llm", "context.span_id": "x", "context.trace_id": "t", "span_kind": "LLM",
           "attributes.llm.input_messages": [{"message.role": "user", "message.contents": [
               {"message_content.type": "text", "message_content.text": "u"},
               {"message_content.type": "image", "message_content.image.image.url": "data:" + "A" * 99}]}],
           "attributes.llm.output_messages": [{"message.role": "assistant", "message.content": "a"}],
           "attributes.llm.model_name": "m", "attributes.retrieval": None}  # fmt: skip
    assert detect([Line("log", 1, json.dumps(row).encode())]) == "otel"
    (session,) = read("otel", row)
    assert said(session) == [("user", "u\n[image]"), ("assistant", "a")]


PARTS_IN = [{"role": "user", "parts": [{"type": "text", "content": "u"}]},
            {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"},
                                            {"type": "tool_call", "id": "c1", "name": "find", "arguments": {"q": 1}},
                                            {"type": "tool_call", "id": "c2", "name": "find", "arguments": {"q": 2}}]},
            {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "one"},
                                       {"type": "tool_call_response", "id": "c2", "response": {"n": 2}}]}]  # fmt: skip
PARTS_OUT = [{"role": "assistant", "parts": [{"type": "text", "content": "a"}], "finish_reason": "length"}]
GEN_AI = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.conversation.id": "s1",
          "gen_ai.input.messages": json.dumps(PARTS_IN), "gen_ai.output.messages": json.dumps(PARTS_OUT),
          "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "s"}])}  # fmt: skip


@pytest.mark.parametrize("record", [
    span(GEN_AI), span(as_otlp(GEN_AI)),
    span({"gen_ai.request.model": "m"}, events=[{"name": "gen_ai.client.inference.operation.details", "attributes": {
        k: json.loads(v) if v[0] in "[{" else v for k, v in GEN_AI.items()}}]),
])  # fmt: skip
def test_gen_ai_messages_in_parts(record):
    (session,) = read("otel", record)
    assert said(session) == [("system", "s"), ("user", "u"), ("assistant", None), ("tool", "one"), ("tool", '{"n":2}'),
                             ("assistant", "a")]  # fmt: skip
    assert (session.messages[2]["reasoning"], [c["id"] for c in session.messages[2]["tool_calls"]]) == (
        "hm",
        ["c1", "c2"],
    )
    assert session.notes[5].finish_reason == "length"
    assert session.model == "m"


def test_gen_ai_events_of_before_and_the_flat_prompts_of_openllmetry():
    events = [
        {"name": "gen_ai.user.message", "attributes": {"gen_ai.system": "openai", "content": "u"}},
        {"name": "gen_ai.assistant.message", "attributes": {"tool_calls": json.dumps([CALL])}},
        {"name": "gen_ai.tool.message", "attributes": {"content": "found", "id": "c1"}},
        {"name": "gen_ai.choice", "attributes": {"finish_reason": "stop", "message": json.dumps(A)}},
    ]
    (session,) = read("otel", span({"gen_ai.response.model": "m"}, events=events))
    assert said(session) == [("user", "u"), ("assistant", None), ("tool", "found"), ("assistant", "a")]
    assert (session.messages[2]["tool_call_id"], session.notes[3].finish_reason) == ("c1", "stop")
    old = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "u", "gen_ai.completion.0.role": "assistant",
           "gen_ai.completion.0.content": "a", "gen_ai.completion.0.finish_reason": "stop"}  # fmt: skip
    (session,) = read("otel", span(old))
    assert (said(session), session.notes[1].finish_reason) == ([("user", "u"), ("assistant", "a")], "stop")


def test_events_that_hold_their_message_as_json():
    """Azure's AI libraries log each message as JSON text, and Pydantic AI logged all events as one attribute."""
    choice = {"message": {"content": "a"}, "finish_reason": "length", "index": 0}
    said_first = [("user", U), ("assistant", {"role": "assistant", "tool_calls": [CALL]}),
                  ("tool", {"role": "tool", "tool_call_id": "c1", "content": "x"})]  # fmt: skip
    events = [{"name": f"gen_ai.{who}.message", "attributes": {"gen_ai.event.content": json.dumps(body)}}
              for who, body in said_first]  # fmt: skip
    events.append({"name": "gen_ai.choice", "attributes": {"gen_ai.event.content": json.dumps(choice)}})
    own = [body | {"event.name": f"gen_ai.{who}.message", "gen_ai.message.index": 0} for who, body in said_first]
    own.append(choice | {"event.name": "gen_ai.choice"})
    for logged in (span({}, events=events), span({"events": json.dumps(own)})):
        (session,) = read("otel", logged)
        assert said(session) == [("user", "u"), ("assistant", None), ("tool", "x"), ("assistant", "a")]
        assert (session.messages[2]["tool_call_id"], session.notes[3].finish_reason) == ("c1", "length")


@pytest.mark.parametrize("operation", ["acompletion", "aresponses", "chat"])
def test_a_span_of_litellm(operation):
    """LiteLLM names the operation after its own function, and logs tool calls and their ids beside the parts."""
    prompt = [{"role": "user", "parts": [{"type": "text", "content": "u"}]},
              {"role": "assistant", "parts": [], "tool_calls": [CALL]},
              {"role": "tool", "parts": [{"type": "text", "content": "found"}], "tool_call_id": "c1"}]  # fmt: skip
    reply = [{"role": "assistant", "parts": [{"type": "text", "content": "a"}], "finish_reason": "length"}]
    (session,) = read("otel", span({"gen_ai.operation.name": operation, "gen_ai.input.messages": json.dumps(prompt),
                                    "gen_ai.output.messages": json.dumps(reply)}))  # fmt: skip
    assert said(session) == [("user", "u"), ("assistant", None), ("tool", "found"), ("assistant", "a")]
    assert [call["name"] for call in session.messages[1]["tool_calls"]] == ["find"]
    assert (session.messages[2]["tool_call_id"], session.notes[3].finish_reason) == ("c1", "length")


def test_a_call_of_anthropic_as_openinference_has_it():
    """The system prompt is an invocation parameter, and tool results are in user messages."""
    result = {"role": "user", "tool_call_id": "c1", "content": '[{"type": "text", "text": "found"}]'}
    system = {"max_tokens": 9, "system": [{"type": "text", "text": "s"}]}
    attributes = flat([U, CALLING, result], A) | {"llm.invocation_parameters": json.dumps(system)}
    (session,) = read("otel", span(attributes))
    found = [(m["role"], m["content"], m["tool_call_id"]) for m in session.messages]
    assert found == [("system", "s", None), ("user", "u", None), ("assistant", None, None), ("tool", "found", "c1"),
                     ("assistant", "a", None)]  # fmt: skip
    (session,) = read("otel", span(flat([{"role": "system", "content": "own"}, U], A) | {
        "llm.invocation_parameters": json.dumps(system)}))  # fmt: skip
    assert said(session)[:2] == [("system", "own"), ("user", "u")]


@pytest.mark.parametrize("attributes", [
    flat([U], A) | {"openinference.span.kind": "CHAIN"}, GEN_AI | {"gen_ai.operation.name": "invoke_agent"},
    GEN_AI | {"gen_ai.operation.name": "execute_tool"},
])  # fmt: skip
def test_spans_of_chains_agents_and_tools_are_no_calls(attributes):
    assert read("otel", span(attributes)) == [LeftOut(NO_CALL)]


def test_an_annotation_on_a_chain_decides_about_the_last_reply_of_its_trace():
    """If a record has no such reply, the annotation is counted as left out."""
    thumb = {"annotator_kind": "HUMAN", "result": {"score": 0, "explanation": "wrong"}}
    chain = span({"openinference.span.kind": "CHAIN"}, annotations=[thumb])
    calls = [span(flat([U, A, V], A), start_time="2026-01-02T03:04:09Z"), span(flat([U], A))]
    other = span(flat([V], A) | {"session.id": "s2"}, context={"trace_id": "t2", "span_id": "y"})
    pieces = READERS["otel"].unfold({"spans": [chain, *calls, other]})
    chain_read, session, others = read("otel", *pieces)
    assert chain_read == LeftOut(NO_CALL)
    assert [note.decision and note.decision["rating"] for note in session.notes.values()] == [None, -1]
    assert others.notes[1].decision is None
    assert read("otel", *READERS["otel"].unfold(chain)) == [LeftOut(NOT_OF_CALL)]


@pytest.mark.parametrize(("name", "label", "rating"), [
    ("toxicity", "toxic", None), ("hallucination", None, None), ("thumbs_down", None, None), ("quality", "good", 1),
    ("toxicity", "good", 1),
])  # fmt: skip
def test_a_score_of_1_for_a_fault_is_no_thumb_up(name: str, label: str | None, rating: int | None):
    said = {"name": name, "annotator_kind": "HUMAN", "result": {"label": label, "score": 1, "explanation": "so"}}
    (session,) = read("otel", span(flat([U], A), annotations=[said]))
    assert session.notes[1].decision["rating"] == rating


def test_spans_of_the_ai_sdk():
    """The spans of the steps of a reply are model calls; the span around the steps is not."""
    asked = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]
    used = {"type": "tool-call", "toolCallId": "c1", "toolName": "find", "input": {"q": 1}}
    result = {"type": "tool-result", "toolCallId": "c1", "toolName": "find", "output": {"type": "text", "value": "x"}}
    tool = {"type": "function", "name": "find", "inputSchema": {"type": "object"}}
    shared = {"ai.operationId": "ai.streamText.doStream", "ai.prompt.tools": [json.dumps(tool)],
              "ai.telemetry.metadata.sessionId": "S", "gen_ai.request.model": "m"}  # fmt: skip
    calls = json.dumps([{"toolCallId": "c1", "toolName": "find", "input": '{"q":1}'}])
    first = {"ai.prompt.messages": json.dumps(asked), "ai.response.reasoning": "Hm.", "ai.response.toolCalls": calls,
             "gen_ai.response.finish_reasons": ["tool-calls"]}  # fmt: skip
    later = [*asked, {"role": "assistant", "content": [{"type": "reasoning", "text": "Hm."}, used]},
             {"role": "tool", "content": [result]}]  # fmt: skip
    second = {"ai.prompt.messages": json.dumps(later), "ai.response.text": "a"}
    around = {"ai.operationId": "ai.streamText", "ai.prompt": json.dumps({"messages": asked}), "ai.response.text": "a"}
    left_out, session = read("otel", span(around), span(shared | first), span(shared | second))
    assert left_out == LeftOut(NO_CALL)
    assert said(session) == [("system", "s"), ("user", "u"), ("assistant", None), ("tool", "x"), ("assistant", "a")]
    assert session.messages[2]["tool_calls"] == [{"id": "c1", "name": "find", "arguments": '{"q":1}'}]
    assert (session.messages[2]["reasoning"], session.notes[2].finish_reason) == ("Hm.", "tool-calls")
    assert (session.model, session.metadata["session_id"]) == ("m", "S")
    (definition,) = read_tool_definitions(session.tools)
    assert definition["function"] == {"name": "find", "parameters": {"type": "object"}}
    made = {"ai.prompt.messages": json.dumps(asked), "ai.response.object": '{"n":1}'}
    (session,) = read("otel", span(made))
    assert said(session)[-1] == ("assistant", '{"n":1}')
    assert read("otel", span({"ai.prompt.messages": json.dumps(asked)}))[0].reason == "no reply"


def calls_of_adk() -> list[tuple[JSON, JSON]]:
    """Return requests and responses of two calls as Google's ADK logs them: a tool call, then an answer."""
    use = {"function_call": {"id": "c1", "name": "find", "args": {"q": 1}}}
    result = {"function_response": {"id": "c1", "name": "find", "response": {"n": 1}}}
    config = {"system_instruction": "s", "tools": [{"function_declarations": [{"name": "find"}]}]}
    request = {"model": "gemini", "config": config, "contents": [{"role": "user", "parts": [{"text": "u"}]}]}
    later = request | {"contents": [*request["contents"], {"role": "model", "parts": [use]},
                                    {"role": "user", "parts": [result]}]}  # fmt: skip
    replies = [{"text": "Hm.", "thought": True}, use], [{"text": "a"}]
    return [(asked, {"content": {"role": "model", "parts": parts}, "partial": False})
            for asked, parts in zip((request, later), replies, strict=True)]  # fmt: skip


def check_calls_of_adk(session: Conversation) -> None:
    assert said(session) == [
        ("system", "s"),
        ("user", "u"),
        ("assistant", None),
        ("tool", '{"n":1}'),
        ("assistant", "a"),
    ]
    assert session.messages[2]["tool_calls"] == [{"id": "c1", "name": "find", "arguments": '{"q":1}'}]
    assert (session.messages[2]["reasoning"], json.loads(session.tools)) == ("Hm.", [{"name": "find"}])


def test_spans_of_googles_adk():
    spans = [span({"gcp.vertex.agent.llm_request": json.dumps(asked), "gcp.vertex.agent.session_id": "S",
                   "gcp.vertex.agent.llm_response": json.dumps(response)})
             for asked, response in calls_of_adk()]  # fmt: skip
    of_tool = span({"gcp.vertex.agent.llm_request": "{}", "gcp.vertex.agent.llm_response": "{}"})
    left_out, session = read("otel", of_tool, *spans)
    assert left_out == LeftOut(NO_CALL)
    check_calls_of_adk(session)
    assert (session.messages[3]["tool_call_id"], session.metadata["session_id"]) == ("c1", "S")


def test_generations_of_googles_adk_in_langfuse():
    """Langfuse keeps ADK's request and response unchanged, as JSON text."""
    (session,) = read("langfuse", *(
        observation(json.dumps(asked), json.dumps(response)) for asked, response in calls_of_adk()
    ))  # fmt: skip
    check_calls_of_adk(session)
    for output in (None, {}, {"error_code": "SAFETY"}, {"content": 5}):
        (item,) = read("langfuse", observation(calls_of_adk()[0][0], output))
        assert item.reason == "no reply"
    for contents in (5, [], [5], [{"parts": [7, {}]}]):
        assert isinstance(read("langfuse", observation({"contents": contents}, "a"))[0], Rejected)


@pytest.mark.parametrize("contents", ["u", [{"role": "user", "parts": [{"text": "u"}]}]])
def test_calls_of_googles_client_in_langfuse(contents):
    output = {"candidates": [{"content": {"role": "model", "parts": [{"text": "a"}]}, "finish_reason": "STOP"}]}
    (session,) = read("langfuse", observation({"model": "gemini", "contents": contents}, output))
    assert said(session) == [("user", "u"), ("assistant", "a")]


@pytest.mark.parametrize("attributes", [
    {"ai.prompt.messages": 5, "ai.response.text": "a"}, {"ai.prompt.messages": "[5]", "ai.response.text": "a"},
    {"ai.prompt.messages": '[{"role": "user", "content": "u"}]', "ai.response": 7},
    {"gcp.vertex.agent.llm_request": '{"contents": [5, {"parts": [7, {}]}]}', "gcp.vertex.agent.llm_response": "[]"},
    {"gcp.vertex.agent.llm_request": "x", "gcp.vertex.agent.llm_response": '{"content": {"parts": {}}}'},
])  # fmt: skip
def test_spans_of_the_ai_sdk_and_of_adk_that_are_damaged(attributes):
    (item,) = read("otel", span(attributes))
    assert isinstance(item, (Rejected, LeftOut))


def test_events_of_strands():
    """The content of a Strands event is JSON text with parts in Bedrock's form."""
    thought = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "x"}}}
    use = {"toolUse": {"toolUseId": "c1", "name": "find", "input": {"q": 1}}}
    result = {"toolResult": {"toolUseId": "c1", "status": "success", "content": [{"text": "one"}, {"json": {"n": 2}}]}}
    events = [
        {"name": f"gen_ai.{who}.message", "attributes": {"content": json.dumps(parts)}}
        for who, parts in (
            ("user", [{"text": "u"}]),
            ("assistant", [thought, {"text": "I look."}, use]),
            ("tool", [result]),
        )
    ]
    choice = {"finish_reason": "end_turn", "message": json.dumps([{"text": "a"}])}
    (session,) = read("otel", span({}, events=[*events, {"name": "gen_ai.choice", "attributes": choice}]))
    assert said(session) == [
        ("user", "u"),
        ("assistant", "I look."),
        ("tool", 'one\n{"json":{"n":2}}'),
        ("assistant", "a"),
    ]
    assert session.messages[1]["tool_calls"] == [{"id": "c1", "name": "find", "arguments": '{"q":1}'}]
    assert (session.messages[1]["reasoning"], session.messages[2]["tool_call_id"]) == ("hm", "c1")
    assert session.notes[3].finish_reason == "end_turn"


def test_a_system_prompt_that_is_logged_twice_is_read_once():
    messages = [{"role": "system", "parts": [{"type": "text", "content": "s"}]}, *PARTS_IN]
    (session,) = read("otel", span(GEN_AI | {"gen_ai.input.messages": json.dumps(messages)}))
    assert [m["role"] for m in session.messages].count("system") == 1


def test_batches_of_otlp_with_spans_of_many_sessions(tmp_path):
    """Each span is put into its session, even if batches mix the spans of several sessions."""

    def batch(*spans) -> dict:
        return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": list(spans)}]}]}

    def ids(session: str, prompt: list[dict], reply: dict) -> dict:
        return {**span(as_otlp(flat(prompt, reply) | {"session.id": session})), "spanId": session}

    http = {"name": "GET /", "spanId": "h", "attributes": [{"key": "http.status", "value": {"intValue": "200"}}]}
    records = [
        batch(ids("s1", [U], A), ids("s2", [U], A), http),
        batch(http),
        batch(ids("s2", [U, A, V], A), ids("s1", [U, A, V], A), {"name": "x", "spanId": "b", "attributes": 7}),
    ]
    found = extracted(tmp_path, *records)
    assert [(s["session_id"], s["line"], len(s["messages"])) for s in found["sessions"]] == [
        ("log:s1", 1, 4), ("log:s2", 1, 4)]  # fmt: skip
    assert [r["line"] for r in json.loads(found["sessions"][1]["metadata"])["records"]] == [1, 3]
    assert not found["rejected"]


def test_a_batch_that_is_none_is_set_aside(tmp_path):
    bad = [{"resourceSpans": 7}, {"resourceSpans": [{"scopeSpans": [{"spans": "x"}]}]}]
    others = [span(flat([{"role": "user", "content": f"u{n}"}], A) | {"session.id": f"t{n}"}) for n in range(2)]
    found = extracted(tmp_path, span(flat([U], A)), *bad, span(flat([U, A, V], A)), *others)
    assert [(r["line"], r["reason"]) for r in found["rejected"]] == [
        (2, "spans of unknown shape"), (3, "spans of unknown shape")]  # fmt: skip
    assert len(found["sessions"]) == 3


def test_text_and_calls_of_one_reply_that_are_logged_apart():
    """OpenInference logs the items of an OpenAI response as messages; of several choices the first is the reply."""
    items = {"llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "u"}
    prefixed = [("llm.output_messages.{}.message.", 0, items), ("llm.input_messages.{}.message.", 1, dict(items))]
    spans = []
    for prefix, first, attributes in prefixed:
        attributes[prefix.format(first) + "role"] = "assistant"
        attributes[prefix.format(first) + "contents.0.message_content.text"] = "I look."
        attributes[prefix.format(first) + "contents.0.message_content.type"] = "text"
        attributes |= {prefix.format(first + 1) + key: value for key, value in CALLING.items()}
        spans.append(attributes)
    spans[1] |= {f"llm.input_messages.3.message.{key}": value for key, value in RESULT.items()}
    spans[1] |= {f"llm.output_messages.0.message.{key}": value for key, value in A.items()}
    spans[1] |= {"llm.output_messages.1.message.role": "assistant", "llm.output_messages.1.message.content": "other"}
    (session,) = read("otel", span(spans[0]), span(spans[1]))
    assert said(session) == [("user", "u"), ("assistant", "I look."), ("tool", "found"), ("assistant", "a")]
    assert [call["name"] for call in session.messages[1]["tool_calls"]] == ["find"]
    assert [note.skip_reason for note in session.notes.values()] == [None, None]


def test_tools_of_openllmetry():
    flat_form = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "u",
                 "gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "a",
                 "llm.request.functions.0.name": "find",
                 "llm.request.functions.0.parameters": '{"type": "object"}'}  # fmt: skip
    (session,) = read("otel", span(flat_form))
    assert json.loads(session.tools) == [
        {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
    ]


def test_values_of_otlp():
    value = {"arrayValue": {"values": [{"intValue": "7"}, {"kvlistValue": {"values": [
        {"key": "a", "value": {"boolValue": True}}]}}, {"doubleValue": 0.5}, {}]}}  # fmt: skip
    assert read_otlp_value(value) == [7, {"a": True}, 0.5, None]
    assert read_otlp_value({"intValue": "9" * 5_000}) == "9" * 5_000


def test_hostile_attributes_cost_no_more_than_they_weigh():
    """Keys of 1,000 names, huge indices, a value in the place of an object, and deep nesting are not expanded."""
    deep: object = "x"
    for _ in range(900):
        deep = {"a": deep}
    tree = nest_attributes(
        {"attributes": {"a." * 1_000: 1, "b": 1, "b.c": 2, "l.999999999999": 1, "l.0": 2, "d": deep}}
    )
    assert (tree["b"], tree["l"]) == (1, {"999999999999": 1, "0": 2})
    assert "a" not in tree
    assert nest_attributes({"attributes": {"0": {"x": 1}, "1": 2}}) == {"0": {"x": 1}, "1": 2}


def test_pages_in_pages_are_no_langfuse():
    """A page holds observations or traces, not pages, so a line of 500 nested pages is one record without a format."""
    line = Line("log", 1, b'{"meta": 1, "data": [' * 500 + b'{"id": "t", "observations": []}' + b"]}" * 500)
    with pytest.raises(Unreadable, match="unknown format"):
        detect([line])
    reader = READERS["langfuse"]
    assert find_id(reader, line) is None
    assert len(unfold_line(line, reader.unfold)) == 1


@pytest.mark.parametrize(("record", "name"), [
    (observation([U], A), "langfuse"), (span(flat([U], A)), "otel"), ({"resourceSpans": []}, "otel"),
    ({"id": "t", "sessionId": "s", "observations": []}, "langfuse"),
    ({"data": [{"id": "t", "sessionId": "s", "observations": []}], "meta": {"page": 1}}, "langfuse"),
])  # fmt: skip
def test_recognised(record, name):
    assert detect([Line("log", 1, json.dumps(record).encode())]) == name


# -- thinking, parts and instructions that are logged apart -----------------------------------------------------------


def test_thinking_and_pictures_in_the_events_of_pydantic_ai():
    """Its parts name their type `kind`, and texts of the user need no object."""
    parts = [{"kind": "thinking", "text": "Greet."}, {"kind": "text", "text": "Hello!"}]
    own = [{"event.name": "gen_ai.user.message", "role": "user", "content": ["u", {"kind": "image-url", "url": "x"}]},
           {"event.name": "gen_ai.choice", "message": {"role": "assistant", "content": parts}}]  # fmt: skip
    (session,) = read("otel", span({"events": json.dumps(own)}))
    assert said(session) == [("user", "u\n[image-url]"), ("assistant", "Hello!")]
    assert session.messages[1]["reasoning"] == "Greet."


def test_a_search_that_the_server_ran_for_pydantic_ai_is_no_reply():
    call = {"id": "c1", "name": "web_search", "builtin": True}
    parts = [{"type": "tool_call", "arguments": {"q": 1}, **call},
             {"type": "tool_call_response", "result": "found", **call}, {"type": "text", "content": "a"}]  # fmt: skip
    output = [{"role": "assistant", "parts": parts, "finish_reason": "stop"}]
    for name, record in (("otel", span({"gen_ai.input.messages": PARTS_IN[:1], "gen_ai.output.messages": output})),
                         ("langfuse", observation(PARTS_IN[:1], output))):  # fmt: skip
        (session,) = read(name, record)
        assert said(session) == [("user", "u"), ("assistant", "[server_tool_use]\n[server_tool_use]\na")]
        assert (session.notes[1].skip_reason, session.messages[1]["tool_calls"]) == ("not only text", [])


def test_thinking_that_openllmetry_logs_as_the_first_completion():
    flat_form = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "u",
                 "gen_ai.completion.0.role": "thinking", "gen_ai.completion.0.content": "hm",
                 "gen_ai.completion.0.finish_reason": "end_turn",
                 "gen_ai.completion.1.role": "assistant", "gen_ai.completion.1.content": "a"}  # fmt: skip
    (session,) = read("otel", span(flat_form))
    assert (said(session), session.messages[1]["reasoning"]) == ([("user", "u"), ("assistant", "a")], "hm")
    assert session.notes[1].finish_reason == "end_turn"


def test_what_the_user_said_beside_a_result_in_openinference():
    attributes = flat([U, CALLING, {"role": "user", "tool_call_id": "c1", "content": "found"}], A)
    attributes |= {"llm.input_messages.2.message.contents.1.message_content.type": "text",
                   "llm.input_messages.2.message.contents.1.message_content.text": "No, in Paris!"}  # fmt: skip
    (session,) = read("otel", span(attributes))
    assert said(session)[2:] == [("tool", "found"), ("user", "No, in Paris!"), ("assistant", "a")]


def test_instructions_beside_another_system_message():
    asked = json.dumps([{"role": "system", "parts": [{"type": "text", "content": "You sell shoes."}]}, *PARTS_IN])
    logged = {"gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Never give a discount."}]),
              "gen_ai.input.messages": asked}  # fmt: skip
    (session,) = read("otel", span(GEN_AI | logged))
    assert said(session)[:2] == [("system", "Never give a discount."), ("system", "You sell shoes.")]


def test_instructions_that_are_no_text_are_not_dropped_without_a_word():
    (session,) = read("otel", span(GEN_AI | {"gen_ai.system_instructions": json.dumps({"rule": "x"})}))
    assert said(session)[0] == ("system", '{"rule":"x"}')


def test_the_tools_of_the_first_versions_of_pydantic_ai():
    asked = {"function_tools": [{"name": "find", "description": "d", "parameters_json_schema": {"type": "object"}}]}
    (session,) = read("otel", span(GEN_AI | {"model_request_parameters": json.dumps(asked)}))
    assert json.loads(session.tools) == [{"name": "find", "description": "d", "parameters": {"type": "object"}}]


def test_a_system_prompt_in_blocks_in_langfuse():
    request = {"system": [{"type": "text", "text": "s"}], "messages": [U]}
    (session,) = read("langfuse", observation(request, A))
    assert said(session) == [("system", "s"), ("user", "u"), ("assistant", "a")]
