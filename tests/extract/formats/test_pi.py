"""Tests of the reader for session event files of pi and OpenClaw."""

import json
from pathlib import Path

import pytest
from small_logs import run, tables, turn_rows

from opdkit.chat.conversation import Conversation
from opdkit.extract.formats.claude_code import CLIENT_ONLY
from opdkit.extract.formats.pi import READER, recognises
from opdkit.extract.formats.reader import Line, Rejected

HEADER = {"type": "session", "id": "s1", "timestamp": "t", "cwd": "/w", "provider": "p", "modelId": "m"}


def text(value: str) -> list[dict]:
    return [{"type": "text", "text": value}]


def user(value: str) -> dict:
    return {"type": "message", "message": {"role": "user", "content": text(value)}}


def reply(*blocks, stop="stop") -> dict:
    return {
        "type": "message",
        "message": {"role": "assistant", "content": list(blocks), "model": "m2", "stopReason": stop},
    }


def result(call: str, value: str, failed=False) -> dict:
    body = {"role": "toolResult", "toolCallId": call, "toolName": "bash", "content": text(value), "isError": failed}
    return {"type": "message", "message": body}


def call(ident: str) -> dict:
    return {"type": "toolCall", "id": ident, "name": "bash", "arguments": {"command": "ls"}}


def lines(*events) -> list[Line]:
    data = [e if isinstance(e, bytes) else json.dumps(e).encode() + b"\n" for e in events]
    return [Line("log", i, d) for i, d in enumerate(data, 1)]


def read(*events) -> tuple[Conversation, list[Rejected]]:
    sessions = list(READER.read(lines(*events)))
    (conversation,) = [t for t in sessions if isinstance(t, Conversation)]
    return conversation, [t for t in sessions if isinstance(t, Rejected)]


def contents(session: Conversation) -> list:
    return [(m["role"], m["content"]) for m in session.messages]


def test_a_linear_session():
    session, aside = read(
        HEADER,
        user("look"),
        reply({"type": "thinking", "thinking": "hm"}, *text("looking"), call("c1"), call("c2"), stop="toolUse"),
        result("c1", "a.py"),
        {"type": "model_change", "provider": "p", "modelId": "m3"},
        {"type": "custom", "customType": "note", "data": {"content": "private"}},
        result("c2", "no such file", failed=True),
        {"type": "compaction", "summary": "so far", "tokensBefore": 9, "firstKeptEntryIndex": 2},
        reply(*text("done")),
    )
    assert aside == []
    assert contents(session) == [
        ("user", "look"), ("assistant", "looking"), ("tool", "a.py"), ("tool", "no such file"), ("assistant", "done")
    ]  # fmt: skip
    second = session.messages[1]
    assert second["reasoning"] == "hm"
    assert second["tool_calls"] == [
        {"id": c, "name": "bash", "arguments": '{"command":"ls"}'} for c in ("c1", "c2")
    ]  # fmt: skip
    assert (session.messages[2]["tool_call_id"], session.messages[2]["name"]) == ("c1", "bash")
    assert session.notes[1].finish_reason == "toolUse"
    assert session.model == "m"
    assert session.metadata == {"id": "s1", "timestamp": "t", "cwd": "/w", "provider": "p", "compacted_before": [4],
                                "tool_errors": [3]}  # fmt: skip


@pytest.mark.parametrize(("stop", "reason"), [
    ("stop", None), ("toolUse", None), ("length", "truncated")
])  # fmt: skip
def test_stop_reasons(stop, reason):
    session, _ = read(HEADER, user("a"), reply(*text("b"), stop=stop), user("c"))
    (row,) = turn_rows("x", session)
    assert (row["skip_reason"], row["finish_reason"]) == (reason, stop)


@pytest.mark.parametrize(
    "redacted",
    [
        {"type": "thinking", "thinking": "[Reasoning redacted]", "thinkingSignature": "x", "redacted": True},  # pi
        {"type": "redacted_thinking", "data": "x"},  # Droid
    ],
)
def test_thinking_that_the_server_hides_is_no_text(redacted):
    session, _ = read(HEADER, user("look"), reply(redacted, *text("done")))
    assert [session.messages[1][key] for key in ("reasoning", "content")] == [None, "done"]
    assert session.notes[1].skip_reason is None


@pytest.mark.parametrize("stop", ["aborted", "error"])
def test_failed_replies_are_counted_and_not_in_the_prompt(stop):
    """The agent leaves them out of what it sends; a session that began with another model is not that model's."""
    failed = reply(*text("b"), stop=stop)
    failed["message"]["model"] = "down"
    header = {key: value for key, value in HEADER.items() if key != "modelId"}
    session, _ = read(header, user("a"), failed, failed, user("a"), reply(*text("c")), user("d"))
    assert contents(session) == [("user", "a"), ("user", "a"), ("assistant", "c"), ("user", "d")]
    assert (session.model, session.metadata["failed_replies"]) == ("m2", 2)


def test_shell_commands_images_and_extensions_are_what_the_model_sees():
    def shell(**more):
        return {"type": "message", "message": {"role": "bashExecution", "command": "ls", "output": "", **more}}

    session, _ = read(HEADER, {"type": "message", "message": {"role": "user", "content": "plain"}},
                      shell(output="a\nb", exitCode=0), shell(exitCode=2), shell(cancelled=True),
                      shell(output="secret", excludeFromContext=True),
                      {"type": "message", "message": {"role": "user", "content": [{"type": "image", "data": "AAAA"}]}},
                      {"type": "custom_message", "customType": "lint", "content": "3 warnings"},
                      {"type": "branch_summary", "summary": "went astray", "fromId": "x"})  # fmt: skip
    assert [m["content"] for m in session.messages] == [
        "plain", "Ran `ls`\n```\na\nb\n```", "Ran `ls`\n(no output)\n\nCommand exited with code 2",
        "Ran `ls`\n(no output)\n\n(command cancelled)", "[image]", "3 warnings", "went astray",
    ]  # fmt: skip
    assert {m["role"] for m in session.messages} == {"user"}
    assert [m["name"] for m in session.messages] == [None, "bash", "bash", "bash", None, "lint", "summary"]


@pytest.mark.parametrize("between", [
    {"type": "message", "message": {"role": "bashExecution", "command": "ls", "output": "a"}},
    {"type": "custom_message", "customType": "lint", "content": "3 warnings"},
    {"type": "branch_summary", "summary": "went astray", "fromId": "x"},
])  # fmt: skip
def test_what_no_person_says_is_no_reaction(between):
    session, _ = read(HEADER, user("build"), reply(*text("Built.")), between, reply(*text("Fixed.")), user("Thanks."))
    assert (session.notes[1].skip_reason, session.notes[3].skip_reason) == (CLIENT_ONLY, None)
    session, _ = read(HEADER, user("build"), reply(*text("Built.")), between, user("It fails."))
    assert session.notes[1].skip_reason is None


def node(event: dict, ident: str, parent: str | None) -> dict:
    return event | {"id": ident, "parentId": parent}


def test_the_active_branch_is_followed():
    session, aside = read(
        HEADER | {"version": 3},
        node(user("one"), "a", None),
        node(reply(*text("first try")), "b", "a"),
        node(user("never mind"), "c", "b"),
        node(reply(*text("dead end")), "d", "c"),
        node(user("other way"), "e", "b"),
        node(reply(*text("good")), "f", "e"),
        node({"type": "label", "targetId": "a", "label": "here"}, "g", "f"),
    )
    assert aside == []
    assert [c for _, c in contents(session)] == ["one", "first try", "other way", "good"]
    header = {key: HEADER[key] for key in ("id", "timestamp", "cwd", "provider")}  # the header is no node
    assert session.metadata == header | {"version": 3, "other_branches": 1}


def test_a_tree_that_runs_in_a_circle_ends():
    session, _ = read(HEADER, node(user("one"), "a", "b"), node(reply(*text("two")), "b", "a"))
    assert [c for _, c in contents(session)] == ["one", "two"]


@pytest.mark.parametrize("tree", [True, False])
def test_the_turns_beside_an_unreadable_line_are_not_trained(tree):
    """A damaged line makes the turns beside it untrainable, not the whole session."""
    events = [user(f"u{i}") if i % 2 == 0 else reply(*text(f"a{i}")) for i in range(9)]
    if tree:
        events = [node(e, str(i), str(i - 1) if i else None) for i, e in enumerate(events)]
    session, (aside,) = read(HEADER, *events[:4], b'{"type": "message", "mess\n', *events[5:])
    assert (aside.line, aside.reason) == (6, "not JSON")
    assert [c for _, c in contents(session)] == ["u0", "a1", "u2", "a3", "a5", "u6", "a7", "u8"]
    assert [r["skip_reason"] for r in turn_rows("x", session)] == [
        None, "unreadable line beside it", "unreadable line beside it", None
    ]  # fmt: skip


def test_a_last_line_cut_short_costs_the_last_turn():
    session, (aside,) = read(HEADER, user("u0"), reply(*text("a1")), user("u2"), reply(*text("a3")), b'{"type": "mess')
    assert aside.reason == "last line cut short"
    assert [r["skip_reason"] for r in turn_rows("x", session)] == [None, "unreadable line beside it"]


def test_comment_lines_leave_no_gap():
    session, (aside,) = read(HEADER, user("u0"), b"# a comment\n", reply(*text("a1")), user("u2"))
    assert aside.reason == "comment line"
    assert [r["skip_reason"] for r in turn_rows("x", session)] == [None]


@pytest.mark.parametrize("event", [
    {"type": "message", "message": None}, {"type": "message", "message": {"role": "narrator"}}, {"type": 3},
    {"type": "message", "message": {"role": ["user"]}},
    {"type": "message", "message": {"role": "user", "content": 5}},
])  # fmt: skip
def test_an_event_that_cannot_be_read_is_set_aside(event):
    session, (aside,) = read(HEADER, user("u0"), event)
    assert aside.line == 3
    assert contents(session) == [("user", "u0")]


def test_a_session_without_a_message_is_set_aside():
    (aside,) = READER.read(lines(HEADER, {"type": "model_change", "modelId": "x"}))
    assert (aside.line, aside.reason) == (1, "no messages")


def test_it_is_told_from_the_other_event_format(shared_data: Path):
    assert recognises(HEADER)
    assert recognises(user("x"))
    assert not recognises({"type": "user", "message": {"role": "user"}, "sessionId": "x"})
    assert not recognises({"type": "summary", "summary": "x"})
    for path in (shared_data / "claude_code").glob("*.jsonl"):
        records = [json.loads(line) for line in path.open(encoding="utf-8") if not line.startswith("//")]
        assert not any(recognises(record) for record in records)


def test_a_line_is_set_aside_once_also_where_its_session_has_no_message():
    lines = [b"{broken\n", b'{"type": "label", "id": "a"}\n', b'{"type": "label", "id": "b"}\n']
    sessions = list(READER.read([Line("log", n, data) for n, data in enumerate(lines, 1)]))
    assert [(row.line, row.reason) for row in sessions] == [(1, "not JSON"), (2, "no messages")]


@pytest.mark.parametrize("name", ["delivery-mirror", "gateway-injected"])
def test_lines_of_openclaw_that_no_model_reads_are_no_replies(name):
    own = reply(*text("Meeting at 9."))
    own["message"] |= {"provider": "openclaw", "model": name}
    session, aside = read(HEADER, user("Tell Ann."), reply(*text("Done.")), own, user("Wrong, at 10!"))
    assert contents(session) == [("user", "Tell Ann."), ("assistant", "Done."), ("user", "Wrong, at 10!")]
    assert not aside
    assert session.model == "m"


@pytest.mark.parametrize("marks", [
    {"provenance": {"kind": "inter_session", "sourceTool": "subagent_announce"}},
    {"provenance": {"kind": "internal_system"}}, {"runtimeContextCarrier": True},
])  # fmt: skip
def test_what_openclaw_itself_writes_as_the_user_is_no_reaction(marks):
    told = user("The subagent is done.")
    told["message"] |= marks
    person = user("Wrong, at 10!")
    person["message"]["provenance"] = {"kind": "external_user"}
    session, aside = read(HEADER, user("Tell Ann."), reply(*text("Done.")), told, reply(*text("Sent.")), person)
    assert not aside
    assert contents(session)[2] == ("user", "The subagent is done.")
    assert {i: note.skip_reason for i, note in session.notes.items()} == {1: CLIENT_ONLY, 3: None}


def droid(ident: str, role: str, *blocks, **fields) -> dict:
    return {"type": "message", "id": ident, "message": {"role": role, "content": list(blocks)}, **fields}


@pytest.mark.parametrize("tree", [True, False])
def test_sessions_of_droid_are_read(tmp_path, tree):
    """Field names as in transcripts of droid 0.213 that others published; older ones name no parents."""

    def after(ident: str) -> dict:
        return {"parentId": ident} if tree else {}

    used = [{"type": "tool_use", "id": f"c{n}", "name": "Read", "input": {"path": "a"}} for n in (1, 2)]
    results = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": f"r{n}"} for n in (1, 2)]
    hidden = droid("c", "user", *text("<system-reminder>tools</system-reminder>"))
    hidden["message"]["visibility"] = "llm_only"
    again = hidden | {"id": "c-2"}  # it names no parent
    answer = droid("a2", "assistant", *text("Both are empty."), **after("u2"))
    answer["message"]["modelId"] = "m"
    events = [
        {"type": "session_start", "id": "s1", "title": "Read", "version": 2, "cwd": "/w"}, hidden,
        droid("u1", "user", *text("Read both."), timestamp="2026-01-01T00:00:00Z", **after("c")),
        droid("a1", "assistant", {"type": "thinking", "thinking": "hm", "signature": "x"}, *used, **after("u1")),
        droid("u2", "user", *results, **after("a1")), {"type": "todo_state", "todos": "1."}, answer, again,
        droid("a3", "assistant", *text("Anything else?"), **after("c-2")),
        droid("u3", "user", *text("No, a is not."), **after("a3")),
    ]  # fmt: skip
    session, aside = read(*events)
    assert not aside
    assert session.model == "m"
    head = {"id": "s1", "title": "Read", "version": 2, "cwd": "/w"}
    assert session.metadata == head | {"timestamp": "2026-01-01T00:00:00Z"}
    assert [m["role"][0] for m in session.messages] == list("uuattauau")
    assert [(m["tool_call_id"], m["content"]) for m in session.messages[3:5]] == [("c1", "r1"), ("c2", "r2")]
    assert [c["arguments"] for c in session.messages[2]["tool_calls"]] == ['{"path":"a"}'] * 2
    assert session.machine == {0, 6}
    assert {i: note.skip_reason for i, note in session.notes.items()} == {2: None, 5: CLIENT_ONLY, 7: None}
    log = tmp_path / "s1.jsonl"
    log.write_text("".join(json.dumps(event) + "\n" for event in [*events, *events]))
    run(tmp_path / "run", log)
    assert [(row["format"], len(row["messages"])) for row in tables(tmp_path / "run")["sessions"]] == [("pi", 9)] * 2
