"""Tests of the reader for OpenAI chat messages, in all the shapes that logs have."""

import orjson
import pytest

from opdkit.chat.conversation import Conversation
from opdkit.extract.formats.openai import READER, recognises
from opdkit.extract.formats.reader import Line, Rejected

USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "hello"}


def read(record) -> Conversation | Rejected:
    (session,) = READER.read([Line("log", 3, orjson.dumps(record))])
    return session


def message(item) -> dict:
    session = read({"messages": [item]})
    assert isinstance(session, Conversation), session
    return session.messages[0]


def plain(role, content, **more) -> dict:
    empty = {"reasoning": None, "name": None, "tool_call_id": None, "tool_calls": []}
    return {"role": role, "content": content} | empty | more


@pytest.mark.parametrize("key", ["messages", "traj", "trajectory", "history", "conversation", "conversations"])
def test_the_messages_lie_under_any_of_these_names(key):
    record = {key: [USER, REPLY], "reward": 1.0, "task": {"id": 4}}
    assert recognises(record)
    session = read(record)
    assert session.messages == [plain("user", "hi"), plain("assistant", "hello")]
    assert session.metadata == {"reward": 1.0, "task": {"id": 4}}
    assert (session.source, session.line) == ("log", 3)


@pytest.mark.parametrize("key", ["messages", "trajectory"])
def test_the_messages_may_be_json_text(key):
    """SWE-smith's data sets of trajectories store the messages as JSON text."""
    record = {key: orjson.dumps([USER, REPLY]).decode(), "resolved": True, "model": "m"}
    assert recognises(record)
    session = read(record)
    assert session.messages == [plain("user", "hi"), plain("assistant", "hello")]
    assert (session.model, session.metadata) == ("m", {"resolved": True})


@pytest.mark.parametrize("text", ["", "hi", "[", "[]", "[5]", "{}", '{"role": "user"}', "[" * 2000, "null"])
def test_a_text_that_holds_no_messages(text):
    assert not recognises({"messages": text})
    assert isinstance(read({"messages": text}), Rejected)


@pytest.mark.parametrize(("field", "text"), [
    ({"images": ["aGk="]}, "[image]\nhi"), ({"images": []}, "hi"), ({"images": None}, "hi"),
    ({"experimental_attachments": [{"name": "a.pdf", "contentType": "application/pdf", "url": "data:"}]},
     "[file: application/pdf]\nhi"),
])  # fmt: skip
def test_pictures_and_files_beside_the_text_leave_a_placeholder(field, text):
    assert message(USER | field) == plain("user", text)


def test_content_null_stays_null_and_calls_stay_verbatim():
    """Content may be null beside tool calls, and arguments need not be JSON; both are kept unchanged."""
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1,  "b'}}
    assert message({"role": "assistant", "content": None, "tool_calls": [call]}) == plain(
        "assistant", None, tool_calls=[{"id": "c1", "name": "look", "arguments": '{"a": 1,  "b'}]
    )
    assert message({"role": "assistant", "content": ""})["content"] == ""
    assert message({"role": "assistant"})["content"] is None
    assert message({"role": "assistant", "content": "x", "tool_calls": None})["tool_calls"] == []


@pytest.mark.parametrize(("call", "read_as"), [
    ({"function": {"name": "f", "arguments": {"a": [1, None]}}}, ("", "f", '{"a":[1,null]}')),
    ({"id": None, "function": {"name": "f", "arguments": None}}, ("", "f", "")),
    ({"id": "1", "name": "f", "arguments": "x"}, ("1", "f", "x")),
    ({"id": "1", "name": "f", "args": {"city": "Rome"}, "type": "tool_call"}, ("1", "f", '{"city":"Rome"}')),
    ({"name": "f", "parameters": {"q": 1}}, ("", "f", '{"q":1}')),
    ({"id": "1", "type": "custom", "custom": {"name": "f", "input": "go"}}, ("1", "f", "go")),
])  # fmt: skip
def test_the_shapes_of_a_call(call, read_as):
    (session,) = message({"role": "assistant", "content": None, "tool_calls": [call]})["tool_calls"]
    assert tuple(session.values()) == read_as


def test_calls_that_langchain_keeps_beside_the_message():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    session = message(
        {"role": "assistant", "content": "", "additional_kwargs": {"tool_calls": [call], "refusal": None}}
    )
    assert session["tool_calls"] == [{"id": "c1", "name": "f", "arguments": "{}"}]
    thought = message({"role": "assistant", "content": "x", "additional_kwargs": {"reasoning_content": "hm"}})
    assert (thought["content"], thought["reasoning"]) == ("x", "hm")
    both = {"role": "assistant", "content": "", "tool_calls": [call], "additional_kwargs": {"tool_calls": [call]}}
    assert len(message(both)["tool_calls"]) == 1


def test_replies_without_a_field_content():
    """OpenAI's own library writes such replies with `exclude_none`."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    thought = message({"role": "assistant", "reasoning_content": "Hm.", "tool_calls": [call]})
    assert (thought["reasoning"], len(thought["tool_calls"])) == ("Hm.", 1)
    assert len(message({"role": "assistant", "function_call": call["function"]})["tool_calls"]) == 1
    assert message({"role": "assistant", "refusal": "no"})["content"] == "no"


def test_legacy_function_calls_and_their_results():
    called = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    session = read({"messages": [USER, called, {"role": "function", "name": "f", "content": "7"}]})
    assert session.messages[1]["tool_calls"] == [{"id": "", "name": "f", "arguments": "{}"}]
    assert session.messages[2] == plain("tool", "7", name="f")


@pytest.mark.parametrize("ids", [{"tool_call_id": "c1"}, {"tool_call_ids": ["c1"]}])
def test_tool_results_name_their_call(ids):
    assert message({"role": "tool", "content": "7", **ids}) == plain("tool", "7", tool_call_id="c1")


def test_a_tool_result_that_is_an_object_or_a_list_of_them_is_dumped():
    assert message({"role": "tool", "content": {"ok": True}})["content"] == '{"ok":true}'
    assert message({"role": "tool", "content": [{"url": "u"}]})["content"] == '[{"url":"u"}]'
    assert message({"role": "tool", "content": [{"type": "text", "text": "7"}]})["content"] == "7"


def test_lists_of_parts_and_what_is_no_text():
    """The texts of a list of parts are joined; an image, audio or video leaves a placeholder."""
    parts = ["a", {"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": "data:" + "x" * 9}},
             {"type": "input_audio", "input_audio": {}}, {"type": "refusal", "refusal": "no"}, {"text": "c"},
             {"type": "video"}]  # fmt: skip
    assert message({"role": "user", "content": parts})["content"] == "a\nb\n[image]\n[audio]\nno\nc\n[video]"
    assert message({"role": "assistant", "content": [{"type": "text", "text": "b"}]})["content"] == "b"
    assert message({"role": "assistant", "content": None, "refusal": "no"})["content"] == "no"


def test_the_text_of_a_part_may_be_an_object_or_null():
    """Threads of OpenAI's Assistants have objects. If their texts were lost, the replies would be trained on empty."""
    thread = {"type": "text", "text": {"value": "b", "annotations": []}}
    assert message({"role": "assistant", "content": [thread]})["content"] == "b"
    assert message({"role": "assistant", "content": [{"type": "text", "text": None}]})["content"] == ""
    assert isinstance(read({"messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]}), Rejected)


def test_a_part_of_text_without_a_text_is_empty_or_sets_the_line_aside():
    """Servers in Go leave out empty fields. Such a part must not become "[text]" in a reply that is trained on."""
    for kind in ("text", "output_text", "refusal"):
        assert message({"role": "assistant", "content": [{"type": kind}]})["content"] == ""
    session = read({"messages": [USER, {"role": "assistant", "content": [{"type": "text", "content": "b"}]}]})
    assert (type(session), session.reason) == (Rejected, "content of unknown shape")


def test_calls_and_results_of_the_ai_sdk_have_parts_of_their_own():
    call = {"type": "tool-call", "toolCallId": "1", "toolName": "f", "input": {"q": 1}}
    output = {"type": "json", "value": {"error": "city missing"}}
    results = [{"type": "tool-result", "toolCallId": "1", "toolName": "f", "output": output},
               {"type": "tool-result", "toolCallId": "2", "toolName": "g", "result": "sun"}]  # fmt: skip
    session = read({"messages": [USER, {"role": "assistant", "content": [call]}, {"role": "tool", "content": results}]})
    assert session.messages[1]["tool_calls"] == [{"id": "1", "name": "f", "arguments": '{"q":1}'}]
    assert session.messages[2:] == [plain("tool", '{"error":"city missing"}', name="f", tool_call_id="1"),
                                    plain("tool", "sun", name="g", tool_call_id="2")]  # fmt: skip


def test_results_of_the_ai_sdk_say_what_they_are_and_approvals_are_no_part_of_the_conversation():
    call = {"type": "tool-call", "toolCallId": "1", "toolName": "f", "input": {"q": 1}}
    asked = {"type": "tool-approval-request", "approvalId": "a", "toolCallId": "1"}
    outputs = [{"type": "execution-denied", "reason": "not now"},
               {"type": "error-text", "value": "no", "providerOptions": {}},
               {"type": "content", "value": [{"type": "text", "text": "x"}, {"type": "media", "data": "AA=="}]},
               {"type": "json", "value": {"type": "a", "value": 1}}]  # fmt: skip
    results = [{"type": "tool-result", "toolCallId": "1", "toolName": "f", "output": output} for output in outputs]
    answered = {"type": "tool-approval-response", "approvalId": "a", "approved": True}
    session = read({"messages": [USER, {"role": "assistant", "content": [call, asked]},
                                 {"role": "tool", "content": [answered]},
                                 {"role": "tool", "content": [answered, *results]}]})  # fmt: skip
    assert [m["content"] for m in session.messages[1:]] == [
        None,
        "not now",
        "no",
        "x\n[media]",
        '{"type":"a","value":1}',
    ]
    assert session.notes == {}


PARTS = [{"type": "step-start"}, {"type": "reasoning", "text": "Hm."}, {"type": "text", "text": "Look."},
         {"type": "tool-weather", "toolCallId": "1", "state": "output-available", "input": {"q": 1}, "output": [20]},
         {"type": "dynamic-tool", "toolName": "f", "toolCallId": "2", "state": "output-error", "input": {}, "errorText":
          "down"}, {"type": "step-start"}, {"type": "source-url", "url": "u"}, {"type": "data-chart", "data": 1},
         {"type": "text", "text": "20 degrees."}]  # fmt: skip
INVOCATION = {
    "state": "result",
    "step": 0,
    "toolCallId": "1",
    "toolName": "weather",
    "args": {"q": 1},
    "result": [20],
}


@pytest.mark.parametrize("reply", [
    {"parts": PARTS},
    {"content": "20 degrees.", "toolInvocations": [INVOCATION], "parts": [
        {"type": "reasoning", "reasoning": "Hm.", "details": []}, {"type": "text", "text": "Look."},
        {"type": "tool-invocation", "toolInvocation": INVOCATION}, {"type": "text", "text": "20 degrees."}]},
    {"content": "20 degrees.", "toolInvocations": [INVOCATION]},
], ids=["version 5", "version 4", "version 3"])  # fmt: skip
def test_a_message_of_use_chat_is_read_as_the_messages_of_its_model(reply):
    """Such a message must not silently lose its text and calls."""
    asked = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"},
                                                  {"type": "file", "mediaType": "image/png", "url": "u"}]}  # fmt: skip
    decision = {"rating": 1}
    session = read({"id": "c", "messages": [asked, {"id": "n", "role": "assistant", "decision": decision} | reply]})
    first, *results, last = session.messages[1:]
    thought = ("Hm.", "Look.") if "parts" in reply else (None, None)
    assert session.messages[0]["content"] == "hi\n[file: image/png]"
    assert (first["reasoning"], first["content"]) == thought
    assert first["tool_calls"][0] == {"id": "1", "name": "weather", "arguments": '{"q":1}'}
    assert results[0] == plain("tool", "[20]", name="weather", tool_call_id="1")
    assert [m["content"] for m in results[1:]] == ["down"] * (reply == {"parts": PARTS})
    assert last == plain("assistant", "20 degrees.")
    assert {index: note.decision["rating"] for index, note in session.notes.items()} == {len(session.messages) - 1: 1}


@pytest.mark.parametrize(("part", "content", "calls", "note"), [
    ({"type": "tool-f", "toolCallId": "1", "state": "input-streaming", "input": {"q": "h"}}, "a", 0, (None, None)),
    ({"type": "tool-f", "toolCallId": "1", "state": "input-available", "input": {}}, "a", 1, (None, None)),
    ({"type": "tool-f", "toolCallId": "1", "state": "approval-requested", "input": {}}, "a", 1, (None, None)),
    ({"type": "text", "text": "b", "state": "streaming"}, "ab", 0, ("aborted", None)),
    ({"type": "tool-search", "toolCallId": "1", "state": "output-available", "providerExecuted": True, "output": 1},
     "a\n[server_tool_use]", 0, (None, "not only text")),
])  # fmt: skip
def test_parts_of_a_reply_that_was_not_finished_or_that_the_server_helped_to_write(part, content, calls, note):
    reply = {"role": "assistant", "parts": [{"type": "text", "text": "a", "state": "done"}, part]}
    session = read({"messages": [USER, reply]})
    assert len(session.messages) == 2
    assert (session.messages[1]["content"], len(session.messages[1]["tool_calls"])) == (content, calls)
    logged = session.notes.get(1)
    assert (logged and logged.finish_reason, logged and logged.skip_reason) == note


@pytest.mark.parametrize(("logged", "names"), [('[{"id": "1", "function": {"name": "f", "arguments": "{}"}}]', ["f"]),
                                               ("[]", []), ("null", [])])  # fmt: skip
def test_calls_may_be_json_text(logged, names):
    """Data sets without nested columns, and Langfuse's form of AI SDK spans, store calls as JSON text."""
    reply = message({"role": "assistant", "content": "b", "tool_calls": logged})
    assert [call["name"] for call in reply["tool_calls"]] == names
    assert isinstance(read({"messages": [USER, REPLY | {"tool_calls": "f(x)"}]}), Rejected)


def test_a_system_prompt_beside_the_messages_is_the_first_of_them():
    """This also holds beside tool results. Kept as metadata only, it would be missing from every prompt."""
    result = {"role": "tool", "tool_call_id": "1", "content": "x"}
    session = read({"system": "Be terse.", "messages": [USER, REPLY | {"finish_reason": "length"}, result]})
    assert session.messages[0] == plain("system", "Be terse.")
    assert (session.notes[2].finish_reason, session.metadata) == ("length", {})
    twice = read({"system": "Be terse.", "messages": [{"role": "system", "content": "Be terse."}, USER, REPLY]})
    assert [m["role"] for m in twice.messages] == ["system", "user", "assistant"]


def test_developer_is_system():
    """OpenAI's newer role `developer` is read as `system`."""
    assert message({"role": "developer", "content": "be brief"}) == plain("system", "be brief")


def test_tool_results_and_calls_inside_content_blocks():
    """Calls and thinking inside a reply's content, and tool results inside a user message, are kept out of the text."""
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "let me look"},
              {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "."}}]  # fmt: skip
    results = [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a.py"}]},
               {"type": "tool_result", "tool_use_id": "t2", "content": "b"},
               {"type": "text", "text": "go on"}]  # fmt: skip
    session = read(
        {"messages": [USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": results}, REPLY]}
    )
    call = {"id": "t1", "name": "ls", "arguments": '{"path":"."}'}
    assert session.messages[1] == plain("assistant", "let me look", reasoning="hm", tool_calls=[call])
    assert session.messages[2:5] == [
        plain("tool", "a.py", tool_call_id="t1"), plain("tool", "b", tool_call_id="t2"), plain("user", "go on")
    ]  # fmt: skip
    assert [m["role"] for m in session.messages] == ["user", "assistant", "tool", "tool", "user", "assistant"]


@pytest.mark.parametrize("thought", [
    {"text": "hm"}, {"reasoning": "hm"}, {"summary": [{"type": "summary_text", "text": "hm"}]},
    {"summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
])  # fmt: skip
def test_parts_with_reasoning_and_with_calls_are_no_text(thought):
    parts = [{"type": "reasoning", **thought}, {"type": "text", "text": "look"},
             {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"}]  # fmt: skip
    call = {"id": "c1", "name": "f", "arguments": "{}"}
    for more in ({}, {"tool_calls": [call]}):
        session = read({"messages": [USER, {"role": "assistant", "content": parts, **more}]})
        assert session.messages[1] == plain("assistant", "look", reasoning="hm", tool_calls=[call])
        assert not session.notes


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_lies_apart(key):
    assert message({"role": "assistant", "content": "4", key: "2+2"}) == plain("assistant", "4", reasoning="2+2")


@pytest.mark.parametrize(("item", "reason"), [
    ({"role": "moderator", "content": "x"}, "unknown role"),
    ({"role": ["user"], "content": "x"}, "unknown role"),
    ({"content": "x"}, "message without a role"),
    ("x", "message is not an object"),
    (None, "message is not an object"),
    ({"role": "user", "content": 7}, "content of unknown shape"),
    ({"role": "user", "content": [7]}, "content of unknown shape"),
    ({"role": "user", "content": [{"type": {}}]}, "content of unknown shape"),
    ({"role": "assistant", "content": None, "tool_calls": {"a": 1}}, "tool calls of unknown shape"),
    ({"role": "assistant", "content": None, "tool_calls": [{"function": {}}]}, "tool calls of unknown shape"),
    ({"role": "assistant", "content": None, "tool_calls": ["f"]}, "tool calls of unknown shape"),
])  # fmt: skip
def test_a_message_that_cannot_be_read_sets_the_line_aside(item, reason):
    """Unknown roles and shapes are rejected with a reason, never guessed."""
    session = read({"messages": [USER, item]})
    assert isinstance(session, Rejected)
    assert session.reason == reason
    assert session.line == 3


@pytest.mark.parametrize("record", [{}, {"messages": []}, {"messages": None}, {"messages": "hi"}, {"text": "hi"}])
def test_a_record_without_messages(record):
    assert read(record).reason == "no messages"


def test_a_logged_call_ends_with_its_choice():
    """Sampled tokens and log-probs of an API call are kept with the reply that they belong to."""
    content = [
        {"token": "hel", "logprob": -0.5, "bytes": [1], "token_id": 11},
        {"token": "lo", "logprob": -1.5, "token_id": 12},
    ]
    session = read({"model": "m", "messages": [USER], "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "length",
         "logprobs": {"content": content}}]})  # fmt: skip
    assert session.messages[1] == plain("assistant", "hello")
    note = session.notes[1]
    assert (note.finish_reason, note.token_ids, note.logprobs) == ("length", [11, 12], [-0.5, -1.5])
    assert session.model == "m"
    assert session.metadata == {}


def test_of_several_choices_that_of_index_0_is_the_reply():
    choices = [{"index": n, "message": REPLY | {"content": f"choice {n}"}} for n in (1, 0)]
    assert read({"messages": [USER], "choices": choices}).messages[1]["content"] == "choice 0"


@pytest.mark.parametrize("key", ["response", "output", "result"])
def test_a_logged_call_ends_with_the_choice_of_its_response(key):
    choice = {"message": REPLY, "finish_reason": "length"}
    session = read({"messages": [USER], key: {"id": "r", "model": "m", "choices": [choice]}})
    assert session.messages[1] == plain("assistant", "hello")
    assert (session.notes[1].finish_reason, session.model) == ("length", "m")
    assert session.metadata == {key: {"id": "r", "model": "m"}}


@pytest.mark.parametrize(
    "beside", [{"response": REPLY}, {"output": {"message": REPLY}}, {"response": "hello"}, {"result": REPLY}]
)
def test_a_reply_beside_its_prompt_is_the_last_message(beside):
    session = read({"messages": [USER]} | beside)
    assert (session.messages[1:], session.metadata) == ([plain("assistant", "hello")], {})


@pytest.mark.parametrize(("beside", "reason"), [
    ({"response": {"choices": [{"message": REPLY, "finish_reason": "length"}]}}, "length"), ({"output": REPLY}, None),
    ({"choices": [{"message": REPLY, "finish_reason": "stop"}]}, "stop"),
    ({"response": REPLY | {"stop_reason": "max_tokens"}}, "max_tokens"),
    ({"response": {"message": REPLY, "done_reason": "length"}}, "length"),  # Ollama's
])  # fmt: skip
def test_a_response_may_be_json_text(beside, reason):
    texts = {key: orjson.dumps(value).decode() for key, value in beside.items()}
    for record in (beside, texts | {"messages": orjson.dumps([USER]).decode()}):
        session = read({"messages": [USER]} | record)
        assert session.messages == [plain("user", "hi"), plain("assistant", "hello")]
        assert session.notes[1].finish_reason == reason


@pytest.mark.parametrize("text", ['{"choices": ["a", "b"]}', '{"choices": [{"label": "A", "text": "Paris"}]}',
                                  '[{"message": {"subject": "Fix"}}]'])  # fmt: skip
def test_a_reply_that_is_json_is_no_response(text):
    as_json = read({"messages": [USER], "response": text, "finish_reason": "length"})
    assert as_json.messages[1] == plain("assistant", text)
    assert as_json.notes[1].finish_reason == "length"


@pytest.mark.parametrize(("last", "beside"), [(REPLY, {"response": REPLY}), (USER, {"result": "success"}),
                                              (USER, {"output": {"role": "user", "content": "x"}})])  # fmt: skip
def test_what_is_not_known_to_be_a_reply_stays_metadata(last, beside):
    session = read({"messages": [USER, REPLY, last]} | beside)
    assert (len(session.messages), session.metadata) == (3, beside)


@pytest.mark.parametrize(("logged", "ids", "logprobs"), [
    ({"logprobs": {"content": [{"token": "a", "logprob": -1.0}]}}, None, [-1.0]),
    ({"logprobs": {"tokens": ["a"], "token_logprobs": [-1.0]}, "token_ids": [5]}, [5], [-1.0]),
    ({"logprobs": [-1, -2.5], "response_token_ids": [5, 6]}, [5, 6], [-1.0, -2.5]),
    ({"token_ids": [5, 6]}, [5, 6], None),
    ({"logprobs": {"content": [{"token": "a", "logprob": None}]}, "token_ids": [5]}, [5], None),
    ({"logprobs": [-1.0], "token_ids": [5, 6]}, None, None),  # it is unknown which belong together
    ({"logprobs": None, "token_ids": []}, None, None),
    ({"token_ids": [5, -1]}, None, None),
    ({"token_ids": [5, True]}, None, None),
    ({"token_ids": [2**31]}, None, None),
    ({"logprobs": [0.5]}, None, None),
    ({"logprobs": [-0.5, 1e-9]}, None, [-0.5, 0.0]),  # rounding
    ({"logprobs": "high"}, None, None),
])  # fmt: skip
def test_sampled_tokens_are_kept_or_null(logged, ids, logprobs):
    """Missing or malformed log-probs are null, never 0.0, never padded."""
    note = read({"messages": [USER, REPLY | {"finish_reason": "stop"} | logged]}).notes[1]
    assert (note.token_ids, note.logprobs) == (ids, logprobs)


def test_model_and_tools():
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert read({"messages": [USER], "tools": tools}).tools == '[{"type":"function","function":{"name":"f"}}]'
    assert read({"messages": [USER], "tools": '[ {"a":1} ]'}).tools == '[ {"a":1} ]'
    assert read({"messages": [USER], "functions": [{"name": "f"}]}).tools == '[{"name":"f"}]'
    assert read({"messages": [USER], "tools": []}).tools is None
    assert read({"messages": [USER, REPLY | {"model": "m"}]}).model == "m"
    assert read({"messages": [USER], "model": ""}).model is None


def test_side_turns_are_marked_by_record_or_message():
    assert read({"messages": [USER, REPLY], "turn_type": "side"}).notes[1].kind == "side"
    assert read({"messages": [USER, REPLY | {"turn_type": "side"}]}).notes[1].kind == "side"
    assert read({"messages": [USER, REPLY | {"turn_type": "main"}]}).notes[1].kind == "main"


def goose(role, *content, **metadata) -> dict:
    """Return a message of a session as Goose exports it."""
    visible = {"userVisible": True, "agentVisible": True} | metadata
    return {"id": "m", "role": role, "created": 1772355600, "content": list(content), "metadata": visible}


def goose_call(name, **arguments) -> dict:
    call = {"status": "success", "value": {"name": "developer__shell", "arguments": arguments}}
    return {"type": "toolRequest", "id": name, "toolCall": call, "_meta": {"goose_extension": "developer"}}


def goose_result(name, *content) -> dict:
    result = {"status": "success", "value": {"content": list(content), "isError": False}}
    return {"type": "toolResponse", "id": name, "toolResult": result}


def goose_text(text, **annotations) -> dict:
    return {"type": "text", "text": text} | ({"annotations": annotations} if annotations else {})


def read_goose(*messages) -> Conversation:
    record = {"id": "20260301_1", "working_dir": "/home/alice", "name": "Tests", "conversation": list(messages),
              "model_config": {"model_name": "m", "toolshim": False}, "message_count": len(messages)}  # fmt: skip
    assert recognises(record)
    session = read(record)
    assert isinstance(session, Conversation), session
    return session


def test_a_session_of_goose():
    """Messages are read as Goose's model saw them: without text for the user alone, with an error and a file."""
    session = read_goose(
        goose("user", goose_text("run the tests")),
        goose("assistant", {"type": "thinking", "thinking": "First", "signature": ""}, goose_text("I run them.")),
        goose("assistant", goose_call("1", command="pytest -q")),
        goose("user", goose_result("1", goose_text("3 passed", audience=["assistant"], priority=0.0),
                                   goose_text("**3 passed**", audience=["user"]))),
        goose("assistant", {"type": "systemNotification", "notificationType": "inlineMessage", "msg": "slow"},
              agentVisible=False),
        goose("assistant", goose_call("2", path="a.py"), {"type": "redactedThinking", "data": "x"}),
        goose("user", goose_result("2", {"type": "resource", "resource": {"uri": "file:///a.py", "text": "a = 1"}})),
        goose("assistant", goose_call("3")),
        goose("user", {"type": "toolResponse", "id": "3", "toolResult": {"status": "error", "error": "-1: denied"}}),
        goose("assistant", goose_text("Done.")),
    )  # fmt: skip
    arguments = {"1": '{"command":"pytest -q"}', "2": '{"path":"a.py"}', "3": "{}"}
    calls = {name: [{"id": name, "name": "developer__shell", "arguments": text}] for name, text in arguments.items()}
    error = "The tool call returned the following error:\n-1: denied"
    assert session.messages == [
        plain("user", "run the tests"),
        plain("assistant", "I run them.", reasoning="First", tool_calls=calls["1"]),
        plain("tool", "3 passed", tool_call_id="1"),
        plain("assistant", None, tool_calls=calls["2"]),
        plain("tool", "a = 1", tool_call_id="2"),
        plain("assistant", None, tool_calls=calls["3"]),
        plain("tool", error, tool_call_id="3"),
        plain("assistant", "Done."),
    ]
    assert not session.notes
    assert session.model == "m"


def test_calls_that_goose_stores_one_by_one_are_of_one_reply():
    """Goose stores each call with a copy of the thinking, followed by the result of the call."""
    thought = {"type": "thinking", "thinking": "Both", "signature": "s"}
    session = read_goose(
        goose("user", goose_text("look")),
        goose("assistant", thought, goose_call("1")), goose("user", goose_result("1", goose_text("one"))),
        goose("assistant", thought, goose_call("2")), goose("user", goose_result("2", goose_text("two"))),
    )  # fmt: skip
    assert [m["role"] for m in session.messages] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in session.messages[1]["tool_calls"]] == ["1", "2"]
    assert session.messages[1]["reasoning"] == "Both"


def test_what_the_model_of_goose_no_longer_sees_is_left_out():
    """The model no longer sees messages from before a summary; a call that could not be parsed leaves a placeholder."""
    session = read_goose(
        goose("user", goose_text("hi"), agentVisible=False),
        goose("assistant", goose_text("hello"), agentVisible=False),
        goose("user", goose_text("A summary"), userVisible=False),
        goose("assistant", goose_text("Your context was compacted."), userVisible=False),
        goose("assistant", {"type": "toolRequest", "id": "1", "toolCall": {"status": "error", "error": "no JSON"}}),
        goose("user", goose_text("go on")),
    )
    assert [m["content"] for m in session.messages] == [
        "A summary", "Your context was compacted.", "[toolRequest]", "go on"
    ]  # fmt: skip
    assert session.notes[1].kind == "side"
    assert session.notes[2].skip_reason == "not only text"
    hidden = {"working_dir": "/", "conversation": [goose("user", goose_text("hi"), agentVisible=False)]}
    assert read(hidden).reason == "no messages"


@pytest.mark.parametrize("content", [
    [5], [None], [{"type": "toolRequest", "id": 1, "toolCall": {"value": {}}}],
    [{"type": "toolResponse", "toolResult": 5}], [{"type": "toolResponse", "toolResult": {"error": 5}}],
    [{"type": "toolResponse", "toolResult": {"value": {"content": [5]}}}], [{"type": "text", "annotations": 5}],
    [{"type": "text", "text": "a", "annotations": {"audience": 5}}], [{"type": ["text"]}], 5,
])  # fmt: skip
@pytest.mark.parametrize("role", ["user", "assistant", None, []])
def test_a_session_of_goose_that_is_damaged_is_read_or_set_aside_with_a_reason(content, role):
    first = goose("user", goose_text("hi"))
    for damaged in ([first, first | {"role": role, "content": content}, 5, {}],
                    [first, first | {"role": role, "content": content}]):  # fmt: skip
        found = read({"working_dir": "/", "conversation": damaged})
        assert found.reason if isinstance(found, Rejected) else found.messages[0]["content"] == "hi"
