"""Tests of the reader for chats and checkpoints of Gemini CLI.

The shapes follow google-gemini/gemini-cli: `ConversationRecord` and `loadConversationRecord` of
packages/core/src/services/chatRecordingService.ts (commit 016443b of 2026, which reads JSON lines as well as the older
form, one object). Checkpoints hold contents of Google's API.
"""

import json

import pytest
from small_logs import jsonl, run, tables

from opdkit.extract.formats import gemini_cli
from opdkit.extract.formats.detect import detect
from opdkit.extract.formats.reader import Line, Rejected

HEADER = {"sessionId": "s-1", "projectHash": "h", "startTime": "2026-03-11T21:02:50.057Z", "lastUpdated": "t"}
RESULT = [{"functionResponse": {"id": "read-1", "name": "read_file", "response": {"output": "x = 1"}}}]
CALL = {"id": "read-1", "name": "read_file", "args": {"path": "a.py"}, "status": "success", "timestamp": "t",
        "result": RESULT, "displayName": "ReadFile", "resultDisplay": "1 line"}  # fmt: skip
THOUGHT = {"subject": "Looking", "description": "The file first.", "timestamp": "t"}


def said(number: int, kind: str, content, **fields) -> dict:
    return {"id": f"m{number}", "timestamp": "t", "type": kind, "content": content, **fields}


CHAT = [
    said(1, "user", [{"text": "<session_context>\nToday is ..."}]),
    said(2, "user", [{"text": "Fix it."}], displayContent="Fix it."),
    said(3, "gemini", "", toolCalls=[CALL], thoughts=[THOUGHT], tokens={"input": 1}, model="gemini-3-pro"),
    said(4, "info", "Update available"),
    said(5, "gemini", "Fixed.", thoughts=[], model="gemini-3-pro"),
    said(6, "user", "No, in b.py."),
]
ROLES = [("user", None), ("user", None), ("assistant", None), ("tool", "read-1"), ("assistant", None), ("user", None)]


def read(*records):
    lines = [Line("log", n, r if isinstance(r, bytes) else json.dumps(r).encode()) for n, r in enumerate(records, 1)]
    assert any(isinstance(r, bytes) for r in records) or detect(lines) == "gemini_cli"
    return list(gemini_cli.READER.read(lines))


@pytest.mark.parametrize("records", [[HEADER | {"messages": CHAT}], [HEADER, *CHAT]])
def test_a_session(records):
    (session,) = read(*records)
    assert [(m["role"], m["tool_call_id"]) for m in session.messages] == ROLES
    call = session.messages[2]
    assert (call["reasoning"], call["content"]) == ("Looking: The file first.", "")
    assert call["tool_calls"] == [{"id": "read-1", "name": "read_file", "arguments": '{"path":"a.py"}'}]
    assert session.messages[3]["content"] == '{"output":"x = 1"}'
    assert session.machine == {0}
    assert (session.model, session.metadata) == ("gemini-3-pro", HEADER)


def test_sessions_and_checkpoints_through_the_stage(tmp_path):
    """A session has its own id; a checkpoint is named after its file. Several checkpoints in one file stay apart."""
    jsonl(tmp_path / "logs" / "session-a.jsonl", HEADER, *CHAT)
    (tmp_path / "logs" / "session-b.json").write_text(json.dumps(HEADER | {"messages": CHAT}, indent=2))
    contents = [{"role": "user", "parts": [{"text": "hi"}]}, {"role": "model", "parts": [{"text": "hello"}]},
                {"role": "user", "parts": [{"text": "in French"}]}]  # fmt: skip
    (tmp_path / "logs" / "checkpoint-c.json").write_text(json.dumps(contents, indent=2))
    jsonl(tmp_path / "logs" / "d.jsonl", {"history": contents, "authType": "x"}, {"history": contents})
    run(tmp_path / "run", tmp_path / "logs")
    found = tables(tmp_path / "run")
    assert [s["session_id"] for s in found["sessions"]] == [
        "checkpoint-c:line1", "d:line1", "d:line2", "session-a:s-1", "session-b:s-1"]  # fmt: skip
    assert [t["trainable"] for t in found["turns"]] == [True] * 7
    assert not found["rejected"]


def test_lines_that_change_what_was_there():
    """Later lines write a message again with its calls, take messages back, and replace the prompt by a summary."""
    (session,) = read(
        HEADER, CHAT[1], said(3, "gemini", "", thoughts=[]), {"$set": {"lastUpdated": "u"}}, CHAT[2],
        said(7, "gemini", "Wrong."), said(8, "user", "Take that back."), {"$rewindTo": "m7"},
        {"$set": {"messages": [said(9, "user", "A summary."), CHAT[2]]}},
        {"$patch": {"updates": [{"id": "m3", "content": []}], "removeIds": ["m2"]}}, *CHAT[4:],
    )  # fmt: skip
    assert [(m["role"], m["content"]) for m in session.messages] == [
        ("user", "Fix it."), ("assistant", ""), ("tool", '{"output":"x = 1"}'), ("assistant", "Fixed."),
        ("user", "No, in b.py.")]  # fmt: skip
    assert session.metadata == HEADER | {"lastUpdated": "u", "other_branches": 1}


def test_a_result_that_is_logged_twice_is_one_message():
    """Versions since mid-2026 also write it as a message of the user, after the reply whose call it answers."""
    (plain,) = read(HEADER, *CHAT)
    (session,) = read(HEADER, *CHAT[:3], said(30, "user", RESULT), *CHAT[3:], said(31, "user", RESULT))
    assert session.messages == plain.messages
    shell = "I ran the following shell command:\n```sh\nls\n```\n\nThis produced the following result:\n```\na\n```"
    (session,) = read(HEADER, *CHAT[:5], said(32, "user", [{"text": shell}]))
    assert session.notes[4].skip_reason == "no reaction but the client's"


def test_a_checkpoint_may_use_the_id_of_a_call_again():
    call = {"role": "model", "parts": [{"functionCall": {"id": "read-1", "name": "read_file", "args": {}}}]}
    contents = [{"role": "user", "parts": [{"text": "Read."}]}, call, {"role": "user", "parts": RESULT},
                call, {"role": "user", "parts": RESULT}, {"role": "model", "parts": [{"text": "Done."}]}]  # fmt: skip
    (session,) = read({"messages": contents})
    assert [m["role"] for m in session.messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_a_message_of_results_that_were_logged_before_is_no_message():
    (plain,) = read(HEADER, *CHAT)
    (session,) = read(HEADER, *CHAT[:3], said(30, "user", RESULT, thoughts=[THOUGHT]), *CHAT[3:])
    assert session.messages == plain.messages


def test_what_the_client_says_is_no_reaction():
    contents = [
        {"role": "user", "parts": [{"text": "This is the Gemini CLI. We are setting up the context for our chat."}]},
        {"role": "model", "parts": [{"text": "Got it. Thanks for the context!"}]},
        {"role": "user", "parts": [{"text": "Look, then fix it."}]},
        {"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": "I look.", "thoughtSignature": "s"}]},
        {"role": "user", "parts": [{"text": "Please continue."}]},
        {"role": "model", "parts": [{"functionCall": {"name": "read_file", "args": {}}},
                                    {"functionCall": {"name": "read_file", "args": {"path": "b"}}}]},
        {"role": "user", "parts": [*RESULT, {"functionResponse": {"id": "read-2", "name": "read_file",
                                                                  "response": {"error": "no such file"}}}]},
        {"role": "model", "parts": [{"text": "Done."}, {"inlineData": {"mimeType": "image/png", "data": "x"}}]},
    ]  # fmt: skip
    (session,) = read({"messages": contents})
    assert [session.notes[i].skip_reason for i in (1, 3, 5, 8)] == [
        "synthetic", "no reaction but the client's", None, "not only text"]  # fmt: skip
    assert session.machine == {0, 4}
    assert (session.messages[3]["reasoning"], session.messages[3]["content"]) == ("hm", "I look.")
    assert [call["id"] for call in session.messages[5]["tool_calls"]] == ["read-1", "read-2"]
    assert [m["tool_call_id"] for m in session.messages[6:8]] == ["read-1", "read-2"]


def test_a_subagent_is_side_and_what_cannot_be_read_costs_itself():
    session, broken = sorted(read(HEADER | {"kind": "subagent"}, *CHAT[1:3], b"{broken", said(8, "odd", "x"),
                                  *CHAT[4:]), key=lambda found: isinstance(found, Rejected))[::2]  # fmt: skip
    assert {note.kind for note in session.notes.values()} == {"side"}
    assert {note.skip_reason for note in session.notes.values()} == {"unreadable line beside it"}
    assert (broken.line, broken.reason) == (5, "unknown role")
    (empty,) = read(HEADER)
    assert empty.reason == "no messages"
