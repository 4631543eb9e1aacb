"""SWE-agent trajectories."""

import json

from small_logs import turn_rows

from opdkit.chat.conversation import Conversation
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
