"""Tests of the reader for SWE-agent trajectories."""

import json

from small_logs import turn_rows

from opdkit.chat.conversation import Conversation
from opdkit.extract.formats.detect import detect
from opdkit.extract.formats.reader import Line, Rejected
from opdkit.extract.formats.sweagent import DEMONSTRATION, READER


def read_one(record: dict) -> Conversation | Rejected:
    (item,) = READER.read([Line("log", 1, json.dumps(record).encode())])
    return item


def item(role: str, content: str, **more) -> dict:
    return {"role": role, "content": content, "agent": "main", **more}


def test_demonstrations_are_prompt_and_no_replies():
    session = read_one({"history": [
        item("system", "s"), item("user", "see", is_demo=True), item("assistant", "like this", is_demo=True),
        item("user", "good", is_demo=True), item("user", "now you"), item("assistant", "ls", thought="t", action="ls"),
        item("user", "a.py"),
    ], "info": {"exit_status": "submitted"}, "trajectory": [{"action": "ls", "observation": "a.py"}],
        "replay_config": json.dumps({"agent": {"model": {"name": "gpt-4o"}}})})  # fmt: skip
    assert [row["skip_reason"] for row in turn_rows("s", session)] == [DEMONSTRATION, None]
    assert (session.model, session.metadata) == ("gpt-4o", {"info": {"exit_status": "submitted"}})
    assert session.machine == {6}


def test_the_same_error_twice_is_no_user_who_asks_again():
    session = read_one({"history": [item("user", "task"), item("assistant", "run"), item("user", "Error: no such file"),
                                    item("assistant", "run x"), item("user", "Error: no such file")]})  # fmt: skip
    assert [row["skip_reason"] for row in turn_rows("s", session)] == [None, None]


def test_a_trajectory_without_a_history_is_told_by_its_steps():
    steps = [
        {"query": [{"role": "user", "content": "task"}], "response": "ls", "observation": "a.py", "action": "ls"},
        {"response": "cat", "observation": "text", "action": "cat a.py"},
        {"response": "submit", "observation": "", "action": "submit"},
    ]
    session = read_one({"trajectory": steps})
    assert [(m["role"], m["content"]) for m in session.messages] == [
        ("user", "task"), ("assistant", "ls"), ("user", "a.py"), ("assistant", "cat"), ("user", "text"),
        ("assistant", "submit"),
    ]  # fmt: skip
    assert [row["skip_reason"] for row in turn_rows("s", session)] == [None, None, "no next state"]


def test_calls_and_results_keep_their_ids():
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    session = read_one({"history": [item("user", "task"), item("assistant", "look", tool_calls=[call]),
                                    item("tool", "a.py", tool_call_ids=["c1"])]})  # fmt: skip
    assert session.messages[1]["tool_calls"] == [{"id": "c1", "name": "bash", "arguments": '{"command": "ls"}'}]
    assert session.messages[2]["tool_call_id"] == "c1"


def test_what_is_no_trajectory_is_set_aside():
    assert read_one({"history": []}).reason == "no messages"
    assert read_one({"trajectory": ["x"]}).reason == "step is not an object"
    assert read_one({"history": [item("user", "x"), 7]}).detail == "message 1 is a int"


def test_trajectories_of_mini_swe_agent():
    """The last message of version 2, of role `exit`, must not make the trajectory unreadable."""
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    cut = {"response": {"choices": [{"finish_reason": "length"}]}, "actions": []}
    asked, printed = {"role": "user", "content": "task"}, {"role": "user", "content": "<returncode>0</returncode>"}
    ended = {"role": "exit", "content": "diff", "extra": {"exit_status": "Submitted", "submission": "diff"}}
    record = {"info": {"config": {"model": {"model_name": "m"}}}, "trajectory_format": "mini-swe-agent-1.1"}
    record["messages"] = [
        asked, {"role": "assistant", "content": "look", "tool_calls": [call], "extra": {}},
        {"role": "tool", "tool_call_id": "c1", "content": "a.py", "extra": {"returncode": 0}},
        {"role": "assistant", "content": "x"}, printed, {"role": "assistant", "content": "x y"}, printed,
        {"role": "assistant", "content": "z", "extra": cut}, {"role": "assistant", "content": "end"},
        ended]  # fmt: skip
    assert detect([Line("log", 1, json.dumps(record).encode())]) == "sweagent"
    session = read_one(record)
    assert [row["skip_reason"] for row in turn_rows("s", session)] == [None, None, None, "truncated", "no next state"]
    assert (session.model, session.messages[2]["tool_call_id"]) == ("m", "c1")
    items = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
             {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"}]  # fmt: skip
    result = {"type": "function_call_output", "call_id": "c1", "output": "a.py"}
    session = read_one(record | {"messages": [asked, {"object": "response", "output": items}, result, ended]})
    assert [(m["role"], m["content"], m["reasoning"]) for m in session.messages] == [
        ("user", "task", None), ("assistant", None, "Hm."), ("tool", "a.py", None)]  # fmt: skip
    assert (session.messages[1]["tool_calls"][0]["id"], session.messages[2]["tool_call_id"]) == ("c1", "c1")
