"""Tests of the rows of the turns table: one per reply, with its next state and why it is not trainable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_logs import turn_rows

from opdkit.chat.conversation import Conversation, Note
from opdkit.chat.messages import message
from opdkit.extract.turns import turns
from opdkit.store.tables import TURNS

ROLE = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def told(pattern: str, notes=None, **contents) -> list[dict]:
    """Return the rows of a conversation with the roles of `pattern`; `at2="text"` sets the content of message 2."""
    messages = [message(ROLE[c], contents.get(f"at{i}", f"text {i}")) for i, c in enumerate(pattern)]
    return turn_rows("log:1", Conversation("log", 1, messages, notes=notes or {}))


def test_the_next_state_is_everything_up_to_the_next_reply():
    """Several parallel tool results are one next state."""
    found = told("suattuauu")
    assert [(r["message_index"], r["next_count"], r["next_role"], r["skip_reason"]) for r in found] == [
        (2, 3, "tool", None), (6, 2, "user", None)
    ]  # fmt: skip
    assert [r["turn_id"] for r in found] == ["log:1:2", "log:1:6"]
    assert all(r["trainable"] and r["kind"] == "main" for r in found)


@pytest.mark.parametrize(("pattern", "options", "reasons"), [
    ("ua", {}, ["no next state"]),
    ("uaau", {}, ["no next state", None]),
    ("uas", {}, ["no next state"]),
    ("uasu", {}, [None]),
    ("au", {}, ["no user message"]),
    ("sau", {}, ["no user message"]),
    ("uau", {"at1": ""}, ["empty"]),
    ("uau", {"at1": None}, ["empty"]),
    ("uau", {"at1": " \n"}, ["empty"]),
    ("uaau", {"at1": "same", "at2": "same"}, ["no next state", "duplicate"]),
    ("uau", {"at0": "fix it", "at2": " fix it\n"}, ["retry"]),
    ("uatau", {"at0": "fix it", "at4": "fix it"}, [None, "retry"]),
    ("uauu", {"at0": "fix it", "at3": "fix it"}, [None]),
    ("uau", {"at0": None, "at2": None}, [None]),
    ("uau", {"at0": "[image]", "at2": "[image]"}, [None]),
    ("uau", {"at0": "[image: image/png]\n[file]", "at2": "[image: image/png]\n[file]"}, [None]),
    ("uau", {"at0": "[image]\nfix it", "at2": "[image]\nfix it"}, ["retry"]),
    ("uat", {"at0": "7", "at2": "7"}, [None]),
])  # fmt: skip
def test_skip_reasons(pattern, options, reasons):
    """A retry is skipped because its next state is the same request and would read as a user who repeats it."""
    found = told(pattern, **options)
    assert [r["skip_reason"] for r in found] == reasons
    assert all(r["trainable"] == (r["skip_reason"] is None) for r in found)


@pytest.mark.parametrize(("note", "reason"), [
    (Note(finish_reason="length"), "truncated"),
    (Note(finish_reason="max_tokens"), "truncated"),
    (Note(finish_reason="stop"), None),
    (Note(kind="side"), "side"),
    (Note(skip_reason="aborted", kind="side"), "aborted"),
])  # fmt: skip
def test_what_the_log_says_about_a_reply(note, reason):
    (row,) = told("uau", {1: note})
    assert (row["skip_reason"], row["kind"], row["finish_reason"]) == (reason, note.kind, note.finish_reason)


def test_side_calls_can_be_asked_for():
    """Another skip reason of a side call still holds."""
    messages = [message(ROLE[role], str(n)) for n, role in enumerate("uaua")]
    talk = Conversation("log", 1, messages, notes={1: Note(kind="side"), 3: Note(kind="side")})
    rows = [dict(zip(TURNS.schema.names, row, strict=True)) for row in turns("log:1", talk, side=True)]
    assert [(row["kind"], row["trainable"], row["skip_reason"]) for row in rows] == [
        ("side", True, None), ("side", False, "no next state")
    ]  # fmt: skip


@pytest.mark.parametrize(("fields", "reason"), [
    ({"rating": 0}, None), ({"comment": "Too long."}, None), ({"edited": "Yes."}, None), ({"kept": "No."}, None),
    ({"tags": ["odd"]}, "no next state"),
])  # fmt: skip
def test_what_a_person_decided_is_a_reaction(fields, reason):
    note = Note()
    note.add_decision(**fields)
    (row,) = told("ua", {1: note})
    assert (row["skip_reason"], row["trainable"], row["next_count"]) == (reason, reason is None, 0)


@pytest.mark.parametrize(("fields", "reason"), [
    ({"rating": -1}, None), ({"rating": 0}, None), ({"comment": "Too long."}, None), ({"edited": "Yes."}, None),
    ({"kept": "No."}, None), ({"tags": ["odd"]}, "retry"),
])  # fmt: skip
def test_a_reply_that_somebody_decided_about_is_no_retry(fields, reason):
    note = Note()
    note.add_decision(**fields)
    (row,) = told("uau", {1: note}, at0="fix it", at2="fix it")
    assert row["skip_reason"] == reason


def test_a_reply_of_calls_alone_is_not_empty():
    call = {"id": "", "name": "f", "arguments": ""}
    messages = [message("user", "hi"), message("assistant", None, tool_calls=[call]), message("tool", "7")]
    assert turn_rows("log:1", Conversation("log", 1, messages))[0]["trainable"]


def test_a_system_message_is_no_reaction():
    (row,) = told("uasu")
    assert (row["next_count"], row["next_role"]) == (2, "user")


@given(st.text("suat", max_size=12))
def test_every_reply_has_a_row_and_every_message_one_owner(pattern):
    found = told(pattern)
    assert [r["message_index"] for r in found] == [i for i, c in enumerate(pattern) if c == "a"]
    before = pattern.find("a") if "a" in pattern else len(pattern)
    assert before + sum(1 + r["next_count"] for r in found) == len(pattern)
    for row in found:
        following = pattern[row["message_index"] + 1 :][: row["next_count"]]
        assert "a" not in following
        assert row["next_role"] == next((ROLE[c] for c in following if c != "s"), None)
        assert (row["skip_reason"] in ("no next state", "no user message")) or row["trainable"]
