"""Tests of the reader for session files of Claude Code."""

import json
import tracemalloc
from pathlib import Path

import pytest
from small_logs import jsonl, run, tables, turn_rows

from opdkit.chat.conversation import Conversation
from opdkit.extract.formats.claude_code import CLIENT_ONLY, REPEATED, SYNTHETIC, read, recognises
from opdkit.extract.formats.reader import Line, Rejected
from opdkit.extract.formats.sessions import GAP
from opdkit.store.skip_reasons import ABORTED


def event(kind: str, ident: str, parent: str | None, message: dict | None = None, **more) -> dict:
    body = {} if message is None else {"message": {"role": kind, **message}}
    return {"type": kind, "uuid": ident, "parentUuid": parent, "sessionId": "s", "isSidechain": False} | body | more


def user(ident: str, parent: str | None, content, **more) -> dict:
    return event("user", ident, parent, {"content": content}, **more)


def piece(ident: str, parent: str | None, reply: str, *blocks, stop: str | None = None, **more) -> dict:
    message = {"id": reply, "content": list(blocks), "model": "claude", "stop_reason": stop}
    return event("assistant", ident, parent, message, **more)


def text(value: str) -> dict:
    return {"type": "text", "text": value}


def use(ident: str) -> dict:
    return {"type": "tool_use", "id": ident, "name": "Bash", "input": {"command": "ls"}}


def result(ident: str, value="done", **more) -> list[dict]:
    return [{"type": "tool_result", "tool_use_id": ident, "content": value, **more}]


def read_all(*events) -> tuple[list[Conversation], list[Rejected]]:
    data = [e if isinstance(e, bytes) else json.dumps(e).encode() + b"\n" for e in events]
    items = list(read([Line("log", n, d) for n, d in enumerate(data, 1)]))
    return [i for i in items if isinstance(i, Conversation)], [i for i in items if isinstance(i, Rejected)]


def only(*events) -> Conversation:
    (session,), aside = read_all(*events)
    assert not aside
    return session


def said(session: Conversation) -> list:
    return [(m["role"], m["content"]) for m in session.messages]


def skips(session: Conversation) -> list:
    return [row["skip_reason"] for row in turn_rows("s", session)]


def test_the_pieces_of_a_reply_are_one_message_and_parallel_results_one_next_state():
    """Here the second result's parent is the second call, and the next reply's parent is the second result."""
    session = only(
        user("a", None, "look"),
        piece("b", "a", "m1", {"type": "thinking", "thinking": "hm", "signature": "x"}),
        piece("c", "b", "m1", text("looking")),
        piece("d", "c", "m1", use("t1")),
        piece("e", "d", "m1", use("t2"), stop="tool_use"),
        user("f", "d", result("t1", [text("one"), text("more")]), toolUseResult={"stdout": "one" * 99}),
        user("g", "e", result("t2", "bad", is_error=True)),
        piece("h", "g", "m2", text("there"), stop="end_turn"),
    )
    assert said(session) == [("user", "look"), ("assistant", "looking"), ("tool", "one\nmore"), ("tool", "bad"),
                             ("assistant", "there")]  # fmt: skip
    reply = session.messages[1]
    assert (reply["reasoning"], [c["id"] for c in reply["tool_calls"]]) == ("hm", ["t1", "t2"])
    assert [m["tool_call_id"] for m in session.messages[2:4]] == ["t1", "t2"]
    first, last = turn_rows("s", session)
    assert (first["next_count"], first["next_role"], first["finish_reason"]) == (2, "tool", "tool_use")
    assert (last["finish_reason"], last["skip_reason"]) == ("end_turn", "no next state")
    assert (session.model, session.metadata["tool_errors"]) == ("claude", [3])


def test_a_result_between_two_calls_of_one_reply_comes_after_both():
    session = only(user("a", None, "go"), piece("b", "a", "m", use("t1")), user("c", "b", result("t1")),
                   piece("d", "c", "m", use("t2")), user("e", "d", result("t2")), piece("f", "e", "n"))  # fmt: skip
    assert [m["role"] for m in session.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert len(session.messages[1]["tool_calls"]) == 2


def test_parallel_calls_that_hooks_report_between_are_all_kept():
    """Before version 2.1.85 the records of hooks were events of the tree, each the parent of what followed it."""
    session = only(user("u", None, "go"), piece("a", "u", "m", use("A")), event("progress", "pa", "a"),
                   piece("b", "pa", "m", use("B")), event("progress", "pb", "b"), user("rb", "b", result("B", "out B")),
                   user("ra", "a", result("A", "out A")), piece("n", "ra", "n", text("done")))  # fmt: skip
    assert said(session) == [("user", "go"), ("assistant", None), ("tool", "out B"), ("tool", "out A"),
                             ("assistant", "done")]  # fmt: skip
    assert [call["id"] for call in session.messages[1]["tool_calls"]] == ["A", "B"]


def test_late_records_of_the_client_do_not_hide_the_reply():
    """They may name the parent of the reply as their own; after a rewind, a local command begins the other branch."""
    session = only(user("1", None, "go"), piece("2", "1", "m1", use("t")), user("3", "2", result("t")),
                   piece("4", "3", "m2", text("the reply")), event("system", "e", "3", subtype="api_error"),
                   event("system", "s", "e", subtype="stop_hook_summary"), user("5", "s", "that is wrong"),
                   piece("6", "5", "m3", text("sorry")), user("7", "6", "ok"))  # fmt: skip
    assert [c for _, c in said(session)] == ["go", None, "done", "the reply", "that is wrong", "sorry", "ok"]
    assert skips(session) == [None, None, None]
    session = only(user("1", None, "go"), piece("2", "1", "m1", text("no")),
                   event("system", "s", "1", subtype="local_command"), user("3", "s", "again"),
                   piece("4", "3", "m2", text("yes")))  # fmt: skip
    assert [c for _, c in said(session)] == ["go", "again", "yes"]


@pytest.mark.parametrize("beside", [[], [user("phantom", None, "x", isSidechain=True)]])
def test_a_parent_that_is_not_in_the_main_conversation_is_a_gap(beside):
    session, *_ = read_all(user("1", None, "My name is Ann"), piece("2", "1", "m1", text("hi")), *beside,
                           user("3", "phantom", "what is my name?"), piece("4", "3", "m2", text("Bob")),
                           user("5", "4", "wrong"))[0]  # fmt: skip
    assert [c for _, c in said(session)] == ["My name is Ann", "hi", "what is my name?", "Bob", "wrong"]
    assert skips(session) == [GAP, GAP]


def test_a_resumed_session_begins_where_its_file_does():
    session = only(user("1", "elsewhere", "go"), piece("2", "1", "m1", text("1")), user("3", "2", "thanks"))
    assert skips(session) == [None]


def test_of_a_rewound_conversation_the_branch_that_went_on_is_told():
    session = only(user("a", None, "go"), piece("b", "a", "m1", text("no")), user("c", "b", "stop"),
                   user("d", "a", "go on"), piece("e", "d", "m2", text("yes")), user("f", "e", "thanks"))  # fmt: skip
    assert [c for _, c in said(session)] == ["go", "go on", "yes", "thanks"]
    assert session.metadata["other_branches"] == 1


def test_a_session_that_was_written_down_twice_is_told_once():
    sessions = only(user("a", None, "go"), piece("b", "a", "m1", text("yes")), user("c", None, "go"),
                    piece("d", "c", "m1", text("yes")), user("e", "d", "thanks"), piece("f", "e", "m2"))  # fmt: skip
    assert [c for _, c in said(sessions)] == ["go", "yes", "thanks", None]
    assert "other_branches" not in sessions.metadata


def test_two_trees_with_replies_of_their_own_are_two_conversations():
    (first, second), _ = read_all(user("a", None, "x"), piece("b", "a", "m1", text("1")), user("c", None, "y"),
                                  piece("d", "c", "m2", text("2")))  # fmt: skip
    assert [c for _, c in said(first)] == ["x", "1"]
    assert [c for _, c in said(second)] == ["y", "2"]


def test_a_sidechain_is_a_conversation_of_its_own():
    (main, side), _ = read_all(
        user("p", None, "count them", isSidechain=True),
        user("a", None, "go"),
        piece("b", "a", "m1", use("t")),
        piece("q", "p", "n1", text("42"), isSidechain=True),
        user("c", "b", result("t", "42")),
        piece("d", "c", "m2", text("42!")),
        user("e", "d", "thanks"),
    )
    assert [c for _, c in said(main)] == ["go", None, "42", "42!", "thanks"]
    assert said(side) == [("user", "count them"), ("assistant", "42")]
    assert skips(main) == [None, None]
    assert (skips(side), turn_rows("s", side)[0]["kind"]) == (["side"], "side")


def test_a_compaction_is_no_message_and_no_end():
    session = only(user("a", None, "go"), piece("b", "a", "m1", text("yes")),
                   event("system", "c", None, subtype="compact_boundary", logicalParentUuid="b"),
                   user("d", "c", "This session is being continued ...", isCompactSummary=True),
                   user("e", "d", "and now?"), piece("f", "e", "m2", text("done")))  # fmt: skip
    assert [c for _, c in said(session)] == ["go", "yes", "and now?", "done"]
    assert session.metadata["compacted_before"] == [2]


def test_the_end_of_a_prompt_that_a_compaction_keeps_is_logged_after_it():
    """The boundary's logical parent is the last kept event, which follows the summary: a cycle."""
    session = only(user("a", None, "go"), piece("b", "a", "m1", text("yes")), user("e", "b", "on"),
                   event("system", "c", None, subtype="compact_boundary", logicalParentUuid="f"),
                   user("d", "c", "This session is being continued ...", isCompactSummary=True),
                   piece("f", "d", "m2", text("kept")), user("g", "f", "and now?"),
                   piece("h", "g", "m3", text("done")))  # fmt: skip
    assert [c for _, c in said(session)] == ["go", "yes", "on", "kept", "and now?", "done"]


def test_replies_that_nobody_can_learn_from_say_why():
    made_up = piece("b", "a", "x1", text("API Error: 529"), isApiErrorMessage=True)
    made_up["message"]["model"] = "<synthetic>"
    session = only(
        user("a", None, "go"), made_up, user("c", "b", "again"),
        piece("d", "c", "m1", text("I wi")), user("e", "d", [text("[Request interrupted by user]")]),
        user("f", "e", "other"), piece("g", "f", "m2", text("ok")),
        user("h", "g", "Caveat: ...", isMeta=True), user("i", "h", "<command-name>/model</command-name>"),
        user("j", "i", "<local-command-stdout>set</local-command-stdout>"), piece("k", "j", "m3", text("?")),
        user("l", "k", "Caveat: ...", isMeta=True), user("m", "l", "please go on"),
    )  # fmt: skip
    assert skips(session) == [SYNTHETIC, ABORTED, CLIENT_ONLY, None]
    assert session.model == "claude"


def test_an_interrupted_tool_is_a_reaction():
    session = only(user("a", None, "go"), piece("b", "a", "m", use("t")), user("c", "b", result("t", is_error=True)),
                   user("d", "c", [text("[Request interrupted by user for tool use]")]))  # fmt: skip
    assert skips(session) == [None]


def test_base64_is_dropped():
    """Of a 600 kB image in a user message or a tool result only the type is kept, so it takes no memory."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 600_000}}
    events = [user("a", None, [image, text("what?")]), piece("b", "a", "m", use("t")),
              user("c", "b", result("t", [image]), toolUseResult={"base64": "A" * 600_000})]  # fmt: skip
    data = [json.dumps(e).encode() for e in events]
    tracemalloc.start()
    (session,) = read([Line("log", n, d) for n, d in enumerate(data, 1)])
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert [c for _, c in said(session)] == ["[image: image/png]\nwhat?", None, "[image: image/png]"]
    assert held < 100_000


def test_what_cannot_be_read_is_set_aside_and_marks_the_turns_beside_it():
    (session,), aside = read_all(
        b"# copied\n", user("a", None, "go"), piece("b", "a", "m1", text("1")), b"{damaged\n",
        piece("d", "lost", "m2", text("2")), user("e", "d", "thanks"), user("e", "d", "thanks"),
        {"type": "user", "uuid": "f", "parentUuid": "e", "message": "no"}, {"uuid": "g"},
    )  # fmt: skip
    assert [(r.line, r.reason) for r in aside] == [
        (1, "comment line"), (4, "not JSON"), (7, REPEATED), (8, "message is not an object"),
        (9, "event without a type"),
    ]  # fmt: skip
    assert [c for _, c in said(session)] == ["go", "1", "2", "thanks"]
    assert skips(session) == [GAP, GAP]
    (session,), _ = read_all(user("a", None, "go"), piece("b", "a", "m1", text("1")), b"{damaged\n",
                             event("progress", "p", "lost"), user("d", "p", "on"), piece("e", "d", "m2", text("2")),
                             user("f", "e", "thanks"))  # fmt: skip
    assert skips(session) == [GAP, GAP]


def test_a_circle_of_parents_ends():
    (session,), _ = read_all(user("a", "b", "go"), piece("b", "a", "m", text("1")))
    assert {c for _, c in said(session)} == {"go", "1"}


def test_a_reply_that_is_marked_as_the_summary_of_a_compaction_is_a_reply():
    """The client writes such summaries as user messages; in a damaged log a reply may have the mark."""
    (session,), aside = read_all(user("a", None, "go"), piece("b", "a", "m", text("1"), isCompactSummary=True))
    assert (said(session), aside) == ([("user", "go"), ("assistant", "1")], [])


def test_a_session_without_messages_is_set_aside():
    sessions, aside = read_all({"type": "summary", "summary": "x", "leafUuid": "y"})
    assert (sessions, [r.reason for r in aside]) == ([], ["no messages"])


@pytest.mark.parametrize("record", [
    {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}}, {"type": "summary", "leafUuid": "l"},
    {"type": "queue-operation", "sessionId": "s"}, user("a", None, "x"),
])  # fmt: skip
def test_recognised(record):
    assert recognises(record)


def test_lines_without_an_id_belong_to_the_session_around_them(tmp_path: Path):
    """A sidechain in a file of its own belongs to the session that it names."""
    snapshot = {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}}
    main = [snapshot, user("a", None, "go"), snapshot, piece("b", "a", "m", text("1")), user("c", "b", "thanks")]
    side = [snapshot, user("p", None, "x", isSidechain=True), piece("q", "p", "n", text("2"), isSidechain=True)]
    other = [{**user("a", None, "hi"), "sessionId": "t"}, {**piece("b", "a", "m", text("3")), "sessionId": "t"}]
    first = jsonl(tmp_path / "main.jsonl", *main, snapshot, *other)
    second = jsonl(tmp_path / "agent-1.jsonl", *side)
    summary = run(tmp_path / "run", first, second, part_mb=1e-4)
    assert summary.counters.rows_in == 2
    sessions = tables(tmp_path / "run")["sessions"]
    assert [(s["session_id"], s["source"], s["line"]) for s in sessions] == [
        ("main:s", str(first), 2), ("main:s#2", str(second), 2), ("main:t", str(first), 7),
    ]  # fmt: skip
    assert not tables(tmp_path / "run")["rejected"]
    swapped = run(tmp_path / "swapped", second, first)
    assert swapped.counters.rows_in == 2
    assert [s["session_id"] for s in tables(tmp_path / "swapped")["sessions"]] == [
        "agent-1:s", "agent-1:s#2", "main:t"]  # fmt: skip


def test_reading_is_linear():
    """A session of 20,001 messages is read whole; a step over all messages for each message would be very slow."""
    events = [user("e0", None, "go")]
    for n in range(0, 20_000, 2):
        events.append(piece(f"e{n + 1}", f"e{n}", f"m{n}", use(f"t{n}")))
        events.append(user(f"e{n + 2}", f"e{n + 1}", result(f"t{n}")))
    session = only(*events)
    assert len(session.messages) == 20_001
    assert skips(session).count(None) == 10_000


@pytest.mark.parametrize(("said", "more"), [
    ("<task-notification>\n<task-id>b</task-id>\n</task-notification>", {}),  # before version 2.1 named the origin
    ("Background command completed", {"origin": {"kind": "task-notification"}}),
    ("<bash-input>git status</bash-input>", {}),
    ("Continue the task.", {"origin": {"kind": "auto-continuation"}}),
    ("Another session sent a message: rebase", {"origin": {"kind": "peer", "name": "reviewer"}}),
])  # fmt: skip
def test_what_only_the_client_says_is_no_reaction_of_a_person(said, more):
    """The client writes some notices as user events, for example that a command in the background has ended."""
    session = only(user("1", None, "build", origin={"kind": "human"}), piece("2", "1", "r1", text("Started.")),
                   user("3", "2", said, **more), piece("4", "3", "r2", text("Done.")),
                   user("5", "4", "thanks", origin={"kind": "human"}))  # fmt: skip
    assert (skips(session), session.machine) == ([CLIENT_ONLY, None], {2})
    queued = {"type": "queued_command", "prompt": said, "commandMode": "prompt"} | more
    session = only(user("1", None, "build"), piece("2", "1", "r1", text("Started.")),
                   event("attachment", "3", "2", attachment=queued), piece("4", "3", "r2", text("Done.")))  # fmt: skip
    assert skips(session)[0] == (CLIENT_ONLY if more else None)


@pytest.mark.parametrize("mode", ["prompt", "task-notification"])
def test_what_a_person_types_while_the_agent_works(mode):
    """The queued message is put before the next reply and belongs to the next state of the previous reply.

    A notice of the client that stands alone is no reaction.
    """
    queued = {"type": "queued_command", "prompt": "no, fix b.py instead", "commandMode": mode}
    session = only(
        user("1", None, "fix a.py"), piece("2", "1", "r1", use("c1")), user("3", "2", result("c1")),
        event("attachment", "4", "3", attachment=queued), piece("5", "4", "r2", text("OK, b.")),
        user("6", "5", "thanks"), event("attachment", "7", "6", attachment={"type": "edited_text_file"}),
    )  # fmt: skip
    assert said(session) == [("user", "fix a.py"), ("assistant", None), ("tool", "done"),
                             ("user", "no, fix b.py instead"), ("assistant", "OK, b."), ("user", "thanks")]  # fmt: skip
    assert [row["next_count"] for row in turn_rows("s", session)] == [2, 1]
    assert skips(session) == [None, None]
    assert session.machine == (set() if mode == "prompt" else {3})
    alone = only(user("1", None, "build"), piece("2", "1", "r1", text("Started.")),
                 event("attachment", "3", "2", attachment=queued), piece("4", "3", "r2", text("Done.")))  # fmt: skip
    assert skips(alone)[0] == (None if mode == "prompt" else CLIENT_ONLY)
