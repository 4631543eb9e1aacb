"""Tests of the reader for ShareGPT conversations."""

import orjson
import pytest

from opdkit.extract.formats.reader import Line, Rejected
from opdkit.extract.formats.sharegpt import READER, recognises


def read(record):
    (session,) = READER.read([Line("log", 1, orjson.dumps(record))])
    return session


def said(*pairs) -> dict:
    return {"conversations": [{"from": who, "value": value} for who, value in pairs]}


def test_roles_and_tools():
    record = said(("system", "s"), ("human", "h"), ("gpt", "g"), ("user", "u"), ("model", "m"), ("observation", "o"),
                  ("assistant", "a"), ("tool", "t"))  # fmt: skip
    assert recognises(record)
    session = read(record | {"tools": '[{"name": "f"}]', "id": 7})
    assert [m["role"] for m in session.messages] == [
        "system", "user", "assistant", "user", "assistant", "tool", "assistant", "tool"
    ]  # fmt: skip
    assert [m["content"] for m in session.messages] == list("shgumoat")
    assert session.tools == '[{"name": "f"}]'
    assert session.metadata == {"id": 7}


@pytest.mark.parametrize(("value", "calls"), [
    ('{"name": "f", "arguments": {"x": [1, "é"]}}', [("f", '{"x":[1,"é"]}')]),
    ('{"name": "f", "arguments": "{\\"x\\": 1}"}', [("f", '{"x": 1}')]),
    ('[{"name": "f", "arguments": {}}, {"name": "g"}]', [("f", "{}"), ("g", "")]),
    ({"name": "f", "arguments": {}}, [("f", "{}")]),
])  # fmt: skip
def test_function_calls(value, calls):
    sessions = read(said(("human", "h"), ("function_call", value), ("observation", "o"))).messages[1]
    assert (sessions["role"], sessions["content"]) == ("assistant", None)
    assert [(c["name"], c["arguments"]) for c in sessions["tool_calls"]] == calls


@pytest.mark.parametrize("value", ["f(1, 2)", '{"name": "f", "arguments"', '{"tool": "f"}', "7", ""])
def test_a_call_that_is_no_json_stays_text(value):
    """No call is invented from text that cannot be read as a call."""
    session = read(said(("human", "h"), ("function_call", value))).messages[1]
    assert (session["content"], session["tool_calls"]) == (value, [])


def test_a_system_prompt_beside_the_conversation():
    assert read(said(("human", "h")) | {"system": "s"}).messages[0]["role"] == "system"
    session = read(said(("system", "own"), ("human", "h")) | {"system": "s"})
    assert [m["content"] for m in session.messages] == ["own", "h"]


@pytest.mark.parametrize(("record", "reason"), [
    (said(("narrator", "x")), "unknown role"),
    ({"conversations": [{"value": "x"}]}, "message without a role"),
    ({"conversations": ["x"]}, "message without a role"),
    ({"conversations": []}, "no messages"),
    ({"conversations": {"from": "human"}}, "no messages"),
    (said(("human", 7)), "content of unknown shape"),
])  # fmt: skip
def test_what_cannot_be_read(record, reason):
    session = read(record)
    assert isinstance(session, Rejected)
    assert session.reason == reason


def test_a_value_may_be_null_or_parts():
    session = read(said(("human", [{"type": "text", "text": "see"}, {"type": "image"}]), ("gpt", None)))
    assert [m["content"] for m in session.messages] == ["see\n[image]", None]
    session = read(said(("human", "h"), ("gpt", [{"type": "reasoning", "summary": []}])))
    assert session.notes[1].skip_reason == "not only text"
