"""Tests of the readers for rows of WildChat, LMSYS-Chat-1M and the Chatbot Arena."""

import json

import pytest
from small_logs import jsonl, run, tables

from opdkit.chat.conversation import Conversation
from opdkit.extract.formats import lmsys, wildchat
from opdkit.extract.formats.detect import detect
from opdkit.extract.formats.reader import Line, Rejected

TALK = [{"role": "user", "content": "hi", "language": "English", "turn_identifier": 7, "timestamp": None},
        {"role": "assistant", "content": "hello", "language": "English", "turn_identifier": 7,
         "timestamp": "2023-04-09T00:02:53+00:00"},
        {"role": "user", "content": "no, in French", "language": "English", "turn_identifier": 8}]  # fmt: skip
WILD = {"conversation_hash": "c0ffee", "model": "gpt-4-0314", "timestamp": "2023-04-09T00:02:53+00:00",
        "conversation": TALK, "turn": 2, "language": "English", "openai_moderation": [{"flagged": False}],
        "detoxify_moderation": [{"toxicity": 0.1}], "toxic": False, "redacted": False, "state": None, "country": "IT",
        "hashed_ip": "abc", "header": {"user-agent": "x"}}  # fmt: skip
PLAIN = [{"role": m["role"], "content": m["content"]} for m in TALK]
LMSYS = {"conversation_id": "33f0", "model": "vicuna-13b", "conversation": PLAIN, "turn": 2, "language": "English",
         "openai_moderation": [{"flagged": False}, {"flagged": True}], "redacted": False}  # fmt: skip
ARENA = {"question_id": "q", "model_a": "vicuna", "model_b": "koala", "winner": "model_b", "conversation_a": PLAIN,
         "conversation_b": PLAIN[:2], "language": "English", "tstamp": 1682351591.1}  # fmt: skip


def read(module, record) -> list[Conversation | Rejected]:
    return list(module.READER.read([Line("log", 1, json.dumps(record).encode())]))


@pytest.mark.parametrize(("record", "name"), [(WILD, "wildchat"), (LMSYS, "lmsys"), (ARENA, "lmsys"),
                                              ({"conversation": PLAIN}, "openai")])  # fmt: skip
def test_recognised(record, name):
    assert detect([Line("log", 1, json.dumps(record).encode())]) == name


def test_wildchat():
    (session,) = read(wildchat, WILD)
    assert [(m["role"], m["content"]) for m in session.messages] == [(m["role"], m["content"]) for m in TALK]
    assert session.model == "gpt-4-0314"
    assert session.metadata == {"conversation_hash": "c0ffee", "timestamp": WILD["timestamp"], "turn": 2,
                                "toxic": False, "language": "English", "redacted": False,
                                "state": None, "country": "IT"}  # fmt: skip


def test_lmsys():
    (session,) = read(lmsys, LMSYS)
    assert (session.model, session.metadata["flagged"], session.metadata["language"]) == ("vicuna-13b", True, "English")
    assert "openai_moderation" not in session.metadata


def test_of_a_comparison_both_conversations_are_told(tmp_path):
    first, second = read(lmsys, ARENA)
    assert [(t.model, len(t.messages), t.metadata["answer"], t.metadata["won"]) for t in (first, second)] == [
        ("vicuna", 3, "a", False), ("koala", 2, "b", True)]  # fmt: skip
    assert "won" not in read(lmsys, ARENA | {"winner": "tie"})[0].metadata
    run(tmp_path / "run", jsonl(tmp_path / "arena.jsonl", ARENA))
    assert [s["session_id"] for s in tables(tmp_path / "run")["sessions"]] == ["arena:1", "arena:1#2"]


def test_half_a_comparison_is_none():
    (aside,) = read(lmsys, ARENA | {"conversation_b": []})
    assert (aside.reason, aside.detail) == ("no messages", "conversation_b is empty")
    assert [r.reason for r in read(wildchat, WILD | {"conversation": None})] == ["no messages"]
