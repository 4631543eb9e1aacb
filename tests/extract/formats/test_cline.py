"""Tests of the reader for tasks of Cline and Roo Code.

The shapes follow the producers' code: `formatResponse` (commit 008b035) and `ToolResultUtils` (0cd9cb5) of
cline/cline, and `ApiMessage` of RooCodeInc/Roo-Code (286c465), with its summaries and reasoning items. The beginning
of one published task of Cline (2026) was read: its calls are blocks, and the results of the calls are text. Sessions
follow `messages-contract-v1.md` of cline/cline (commit 0f667f0), the writer's code beside it, and the kinds of messages
that checkpoint-message-filter.ts lists.
"""

import json

from small_logs import run, tables

from opdkit.extract.formats import cline
from opdkit.extract.formats.claude_code import CLIENT_ONLY
from opdkit.extract.formats.detect import detect
from opdkit.extract.formats.reader import Line

DETAILS = "<environment_details>\n# Visual Studio Code Visible Files\n(No visible files)\n</environment_details>"
WANT_TOOL = "[ERROR] You did not use a tool in your previous response! Please retry with a tool use."
RESUMED = "[TASK RESUMPTION] This task was interrupted 2 hours ago. It may or may not be complete."


def said(role: str, *texts: str, **fields) -> dict:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts], "ts": 1777073160794, **fields}


def read(*items):
    (session,) = cline.READER.read([Line("log", 1, json.dumps({"messages": items}).encode())])
    return session


XML = (
    said("user", "<task>\nFix it.\n</task>", DETAILS),
    said("assistant", "Looking.\n\n<read_file>\n<path>a.py</path>\n</read_file>"),
    said("user", "[read_file for 'a.py'] Result:", "1 | x", DETAILS),
    said("assistant", "It is fixed."),
    said("user", WANT_TOOL, DETAILS),
    said("assistant", "<attempt_completion>\n<result>\nFixed.\n</result>\n</attempt_completion>"),
    said("user", "[attempt_completion] Result:", "The user has provided feedback on the results.\n<feedback>\nNo, in "
         "b.py.\n</feedback>", DETAILS),
    said("assistant", "Well <write_to_file>\n\n[Response interrupted by user]"),
    said("user", RESUMED, "New instructions for task continuation:\n<user_message>\nGo on.\n</user_message>", DETAILS),
    said("assistant", "Failure: I did not provide a response."),
    said("user", WANT_TOOL, DETAILS),
    said("assistant", "Done.", modelInfo={"modelId": "m", "providerId": "p", "mode": "act"}),
    said("user", RESUMED, DETAILS),
)  # fmt: skip


def test_what_the_client_wrote_is_told_from_what_a_person_wrote(tmp_path):
    session = read(*XML)
    assert [m["role"] for m in session.messages] == ["user", "assistant"] * 6 + ["user"]
    assert session.machine == {2, 4, 10, 12}
    assert session.messages[2]["content"] == f"[read_file for 'a.py'] Result:\n1 | x\n{DETAILS}"
    assert (session.model, session.metadata) == ("m", {"timestamp": 1777073160794})
    (tmp_path / "api_conversation_history.json").write_text(json.dumps(XML))
    run(tmp_path / "run", tmp_path / "api_conversation_history.json")
    found = tables(tmp_path / "run")
    assert [s["format"] for s in found["sessions"]] == ["cline"]
    assert [(t["message_index"], t["skip_reason"]) for t in found["turns"]] == [
        (1, None), (3, None), (5, None), (7, "aborted"), (9, "synthetic"), (11, "no reaction but the client's"),
    ]  # fmt: skip


def test_a_notice_that_is_sent_again_is_no_retry():
    """The same notice after two replies comes from the client, not from a person who repeats a request."""
    session = read(XML[0], said("assistant", "a"), said("user", WANT_TOOL), said("assistant", "b"),
                   said("user", WANT_TOOL))  # fmt: skip
    assert session.machine == {2, 4}


def call(name: str, number: int) -> dict:
    return {"type": "tool_use", "id": f"c{number}", "name": name, "input": {"path": "a"}, "call_id": f"c{number}"}


def test_calls_are_paired_with_results_in_blocks_and_in_text():
    result = {"type": "tool_result", "tool_use_id": "c4", "content": '{"status":"denied","feedback":"not there"}'}
    session = read(
        XML[0],
        {"role": "assistant", "content": [call("use_subagents", 1), call("read_file", 2), call("read_file", 3)]},
        said("user", "[subagents] Result:\ntwo", "[read_file for 'a'] Result:\nx", "[read_file for 'b'] Result:\ny",
             DETAILS),
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, call("write", 4)]},
        {"role": "user", "content": [result, {"type": "text", "text": DETAILS}]},
        said("assistant", "Done."),
    )  # fmt: skip
    assert [(m["role"], m["tool_call_id"]) for m in session.messages] == [
        ("user", None), ("assistant", None), ("tool", "c1"), ("tool", "c2"), ("tool", "c3"), ("user", None),
        ("assistant", None), ("tool", "c4"), ("user", None), ("assistant", None),
    ]  # fmt: skip
    assert [m["content"] for m in session.messages[2:6]] == [
        "[subagents] Result:\ntwo", "[read_file for 'a'] Result:\nx", "[read_file for 'b'] Result:\ny", DETAILS,
    ]  # fmt: skip
    assert (session.messages[6]["reasoning"], session.messages[6]["content"]) == ("hm", None)
    assert not any(note.skip_reason for note in session.notes.values())


def test_roo_s_summaries_are_no_messages_and_its_reasoning_is_of_the_next_reply():
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "first b"}], "encrypted_content": "g"}
    items = (XML[0], said("assistant", "a"), said("user", "[x] Result:"),
             said("user", "They fixed it.", isSummary=True, condenseId="s"),
             said("user", "marker", isTruncationMarker=True), thought, said("assistant", "b"))  # fmt: skip
    session = read(*items)
    assert [(m["role"], m["reasoning"]) for m in session.messages] == [
        ("user", None), ("assistant", None), ("user", None), ("assistant", "first b")]  # fmt: skip
    assert session.metadata["summaries"] == 2
    assert detect([Line("log", 1, json.dumps({"version": 2, "messages": items}).encode())]) == "cline"


def test_other_messages_are_not_taken_for_a_task():
    app = {"sessionId": "s", "version": "2.1", "updated_at": "t", "model": "m", "messages": XML}
    for record in ({"messages": [{"role": "user", "content": "hi"}]}, {"messages": XML, "model": "m"}, app):
        assert detect([Line("log", 1, json.dumps(record).encode())]) == "openai"


def test_a_session_has_its_system_prompt_and_what_the_client_wrote_is_no_reaction(tmp_path):
    def in_mode(text: str, **metadata) -> dict:
        return said("user", f'<mode_notice>plan is over</mode_notice><user_input mode="act">{text}</user_input>',
                    metadata=metadata)  # fmt: skip

    found = [
        {"query": "a.py", "result": "x", "success": True},
        {"query": "b.png", "result": [{"type": "text", "text": "It shows"}, {"type": "image", "data": "aGk="}]},
    ]
    results = [{"type": "tool_result", "tool_use_id": "c1", "name": "read", "content": found},
               {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "two"}]}]  # fmt: skip
    items = [
        in_mode("Fix it."),
        {"role": "assistant", "modelInfo": {"id": "m", "provider": "p"},
         "content": [{"type": "thinking", "thinking": "hm"}, call("read", 1), call("read", 2)]},
        {"role": "user", "content": results, "metadata": {"userRunSpan": 0}},
        said("assistant", "It is fixed."), said("user", "[SYSTEM] Submit it.", metadata={"displayRole": "system"}),
        said("assistant", "Done."), in_mode("[TASK RESUMPTION] Please continue."),
        said("assistant", "Going on."), said("user", "Stop at c.py.", metadata={"userRunSpan": 0}),
        said("assistant", "Stopped."), said("error", "429"),
        said("user", "Sum", metadata={"kind": "compaction_summary"}), said("assistant", "Still here."),
        said("user", "shown", metadata={"displayOnly": True}), in_mode("No, in b.py."),
    ]  # fmt: skip
    head = {"version": 1, "updated_at": "2026-11-01T00:00:00.000Z"}
    record = head | {"agent": "lead", "sessionId": "s1", "messages": items, "system_prompt": "You are Cline."}
    summary = head | {"source_message_count": 3, "messages": items[3:]}
    for name, data in {"s1.messages.json": record, "s1.compaction.json": summary, "s1.json": {"version": 1}}.items():
        (tmp_path / name).write_text(json.dumps(data, indent=1))
    run(tmp_path / "run", tmp_path)
    written = tables(tmp_path / "run")
    (session,) = written["sessions"]
    assert (session["format"], session["model"]) == ("cline", "m")
    assert json.loads(session["metadata"]) == {"agent": "lead", "sessionId": "s1", "timestamp": 1777073160794}
    messages = session["messages"]
    assert [m["role"][0] for m in messages] == list("suattauauauauau")
    assert (messages[0]["content"], messages[2]["reasoning"]) == ("You are Cline.", "hm")
    assert messages[1]["content"].startswith("<mode_notice>")
    assert [(m["tool_call_id"], m["content"]) for m in messages[3:5]] == [
        ("c1", '[{"query":"a.py","result":"x","success":true},{"query":"b.png","result":"It shows\\n[image]"}]'),
        ("c2", "two"),
    ]  # fmt: skip
    assert [(t["message_index"], t["skip_reason"]) for t in written["turns"]] == [
        (2, None), (5, None), (7, CLIENT_ONLY), (9, None), (11, CLIENT_ONLY), (13, None),
    ]  # fmt: skip
    assert sorted(row["reason"] for row in written["rejected"]) == ["copy of a session", "unknown format"]
    (read_session,) = cline.READER.read([Line("log", 1, json.dumps(record).encode())])
    assert read_session.machine == {6, 8, 12}


def test_a_session_without_messages_is_set_aside():
    record = {
        "version": 1,
        "updated_at": "2026-11-01T00:00:00.000Z",
        "agent": "lead",
        "sessionId": "s1",
        "messages": [],
    }
    line = Line("log", 1, json.dumps(record).encode())
    assert detect([line]) == "cline"
    (aside,) = cline.READER.read([line])
    assert aside.reason == "no messages"
