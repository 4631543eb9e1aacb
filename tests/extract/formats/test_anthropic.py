"""Tests of the reader for calls of Anthropic's Messages API."""

import json

import pytest
from small_logs import turn_rows

from opdkit.chat.conversation import Conversation
from opdkit.extract.formats.anthropic import READER
from opdkit.extract.formats.detect import detect
from opdkit.extract.formats.reader import Line, Rejected

ASK = {"role": "user", "content": "what is the weather?"}
CALL = {"role": "assistant", "content": [
    {"type": "thinking", "thinking": "a tool", "signature": "x"}, {"type": "text", "text": "I look."},
    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
    {"type": "tool_use", "id": "t2", "name": "weather", "input": {"city": "Bari"}}]}  # fmt: skip
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "AAAA"}}
RESULTS = {"role": "user", "content": [
    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sun"}, IMAGE]},
    {"type": "tool_result", "tool_use_id": "t2", "content": "rain", "is_error": False},
    {"type": "text", "text": "and tomorrow?"}]}  # fmt: skip
REPLY = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
         "content": [{"type": "text", "text": "Sun."}], "usage": {"output_tokens": 3}}  # fmt: skip
REQUEST = {"model": "claude-x", "system": [{"type": "text", "text": "Be brief."}], "max_tokens": 9,
           "messages": [ASK, CALL, RESULTS], "tools": [{"name": "weather"}]}  # fmt: skip


def read_one(record: dict) -> Conversation | Rejected:
    (item,) = READER.read([Line("log", 1, json.dumps(record).encode())])
    return item


@pytest.mark.parametrize("record", [
    REQUEST | {"response": REPLY}, {"request": REQUEST, "response": REPLY}, {"params": REQUEST, "result": {
        "type": "succeeded", "message": REPLY}}, {"body": REQUEST, "response": {"body": REPLY}},
    REQUEST | {"messages": json.dumps(REQUEST["messages"]), "response": json.dumps(REPLY)},
])  # fmt: skip
def test_a_request_with_its_response(record):
    session = read_one(record)
    assert [(m["role"], m["content"]) for m in session.messages] == [
        ("system", "Be brief."), ("user", "what is the weather?"), ("assistant", "I look."),
        ("tool", "sun\n[image: image/jpeg]"), ("tool", "rain"), ("user", "and tomorrow?"), ("assistant", "Sun."),
    ]  # fmt: skip
    assert session.messages[2]["reasoning"] == "a tool"
    assert [c["arguments"] for c in session.messages[2]["tool_calls"]] == ['{"city":"Rome"}', '{"city":"Bari"}']
    assert [m["tool_call_id"] for m in session.messages[3:5]] == ["t1", "t2"]
    first, last = turn_rows("s", session)
    assert (first["next_count"], first["next_role"], first["skip_reason"]) == (3, "tool", None)
    assert (last["finish_reason"], last["skip_reason"]) == ("end_turn", "no next state")
    assert (session.model, json.loads(session.tools)) == ("claude-x", [{"name": "weather"}])
    assert session.metadata["usage"] == {"output_tokens": 3}
    assert session.metadata["max_tokens"] == 9


@pytest.mark.parametrize("messages", [[ASK], json.dumps([ASK])])
def test_a_text_beside_its_request_is_the_reply(messages):
    request = {"system": "Be brief.", "messages": messages}
    session = read_one(request | {"response": "Sun.", "stop_reason": "max_tokens"})
    assert [m["content"] for m in session.messages] == ["Be brief.", "what is the weather?", "Sun."]
    assert (session.notes[2].finish_reason, session.metadata) == ("max_tokens", {"stop_reason": "max_tokens"})
    ended = read_one({"system": "Be brief.", "messages": [ASK, REPLY], "response": "Sun."})
    assert [m["content"] for m in ended.messages[1:]] == ["what is the weather?", "Sun."]


def test_of_several_replies_the_response_counts():
    other = {"content": [{"type": "text", "text": "Rain."}]}
    session = read_one({"messages": [ASK], "result": other, "output": other, "response": REPLY})
    assert [m["content"] for m in session.messages] == ["what is the weather?", "Sun."]


@pytest.mark.parametrize("beside", [
    {"result": {"passed": True}}, {"response": {"type": "error", "error": {"type": "overloaded_error"}}},
    {"result": {"type": "errored", "error": {}}}, {"output": {"message": "no text"}},
])  # fmt: skip
def test_what_holds_no_content_is_no_reply(beside):
    """A field that holds no message content stays in the metadata, also beside a reply."""
    thanks = {"role": "user", "content": "thanks"}
    session = read_one({"system": "s", "messages": [ASK, CALL, thanks]} | beside)
    assert [m["role"] for m in session.messages] == ["system", "user", "assistant", "user"]
    assert session.metadata == beside
    answered = read_one({"messages": [ASK], "response": REPLY, "result": {"passed": True}})
    assert answered.metadata == {"result": {"passed": True}, "usage": REPLY["usage"]}


@pytest.mark.parametrize(("part", "text"), [
    ({"type": "document", "title": "t", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}, "a"),
    ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "a"},
                                                                    {"type": "text", "text": "b"}]}}, "a\nb"),
    ({"type": "document", "source": {"type": "content", "content": "a"}}, "a"),
    ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}},
     "[document: application/pdf]"),
    ({"type": "document", "source": {"type": "text"}}, "[document]"), ({"type": "document"}, "[document]"),
    ({"type": "search_result", "source": "u", "title": "t", "content": [{"type": "text", "text": "a"}]}, "a"),
    ({"type": "search_result", "source": "u", "content": [5, {"type": "image"}]}, "[search_result]"),
])  # fmt: skip
def test_the_text_of_a_document_or_a_search_result_is_read(part, text):
    asked = {"role": "user", "content": [part, {"type": "text", "text": "why?"}]}
    found = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [part]}]}
    session = read_one({"system": "s", "messages": [asked, CALL, found]})
    assert [m["content"] for m in session.messages[1:]] == [f"{text}\nwhy?", CALL["content"][1]["text"], text]


def test_cited_passages_of_a_reply_are_one_text():
    cited = {"type": "text", "text": "Rome", "citations": [{"type": "web"}]}
    parts = [{"type": "text", "text": "The capital is "}, cited, {"type": "text", "text": "."}]
    thanks = {"role": "user", "content": "thanks"}
    session = read_one({"messages": [ASK, {"role": "assistant", "content": [*CALL["content"][:1], *parts]}, thanks]})
    assert (session.messages[1]["content"], session.messages[1]["reasoning"]) == ("The capital is Rome.", "a tool")
    assert turn_rows("s", session)[0]["skip_reason"] is None
    asked = {"role": "user", "content": parts}
    assert read_one({"messages": [asked, CALL]}).messages[0]["content"] == "The capital is \nRome\n."


def test_what_a_server_put_into_a_reply_was_not_written_by_the_model():
    parts = [{"type": "server_tool_use", "id": "x", "name": "web_search", "input": {}},
             {"type": "text", "text": "It rains."}]  # fmt: skip
    session = read_one({"messages": [ASK, {"role": "assistant", "content": parts}, ASK]})
    assert session.messages[1]["content"] == "[server_tool_use]\nIt rains."
    assert turn_rows("s", session)[0]["skip_reason"] == "not only text"


def test_a_stop_reason_that_is_missing_is_null():
    for reason in ("", None, 5):
        session = read_one(REQUEST | {"response": REPLY | {"stop_reason": reason}})
        assert turn_rows("s", session)[-1]["finish_reason"] is None


def test_a_reply_that_was_cut_off():
    session = read_one({**REQUEST, **REPLY, "stop_reason": "max_tokens", "messages": [ASK]})
    assert turn_rows("s", session)[0]["skip_reason"] == "truncated"


@pytest.mark.parametrize(("record", "name"), [
    (REQUEST, "anthropic"), ({"messages": [ASK, CALL]}, "anthropic"), ({"messages": [ASK], "system": "s"}, "anthropic"),
    ({"messages": [ASK], "response": REPLY}, "anthropic"), ({"messages": [ASK]}, "openai"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, "openai"),
])  # fmt: skip
def test_recognised_by_what_only_this_interface_has(record, name):
    assert detect([Line("log", 1, json.dumps(record).encode())]) == name


@pytest.mark.parametrize("beside", [
    {"choices": [{"message": {"role": "assistant", "content": "two"}}]},
    {"response": {"model": "m", "choices": [{"message": {"role": "assistant", "content": "two"}}]}},
])  # fmt: skip
def test_choices_beside_a_system_prompt_are_the_reply(beside):
    """`choices` is OpenAI's field, but a file that is read as Anthropic's still keeps the reply in such a line."""
    record = {"system": "Be brief.", "messages": [ASK]} | beside
    assert detect([Line("log", 1, json.dumps(record).encode())]) == "openai"
    assert [m["content"] for m in read_one(record).messages] == ["Be brief.", ASK["content"], "two"]


def test_what_is_no_request_is_set_aside():
    assert read_one({"messages": []}).reason == "no messages"
    assert read_one({"system": 7, "messages": [ASK]}).reason == "content of unknown shape"
    assert read_one({"messages": [{"role": "narrator", "content": "x"}]}).reason == "unknown role"


def test_messages_of_use_chat_beside_a_system_prompt():
    """What a client of the AI SDK posts is recognised as a request of this API, and its `parts` are read."""
    said = [{"id": str(n), "role": role, "parts": [{"type": "text", "text": role}]}
            for n, role in enumerate(("user", "assistant"))]  # fmt: skip
    record = {"system": "s", "messages": said}
    assert detect([Line("log", 1, json.dumps(record).encode())]) == "anthropic"
    assert [m["content"] for m in read_one(record).messages] == ["s", "user", "assistant"]


@pytest.mark.parametrize(("run", "text"), [
    ({"status": "done", "result": {"output": "sun", "exitCode": 0}}, '{"output":"sun","exitCode":0}'),
    ({"status": "error", "error": "no city"}, "no city"), ({"status": "cancelled"}, '{"status":"cancelled"}'),
    (None, None),
])  # fmt: skip
def test_amp_logs_a_result_as_a_run(run, text):
    result = {"type": "tool_result", "toolUseID": "t1", "run": run}
    session = read_one({"id": "T-1", "messages": [ASK, CALL, {"role": "user", "content": [result]}]})
    assert [(m["content"], m["tool_call_id"]) for m in session.messages[2:]] == [(text, "t1")]
