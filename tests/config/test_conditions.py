"""Tests of `--filter`: which sessions are kept, and why the others are not."""

import datetime

import pytest
from small_logs import chat, jsonl, run, tables

from opdkit.chat.conversation import Conversation
from opdkit.commands.check.stage import run as check
from opdkit.config.check import CheckConfig
from opdkit.config.conditions import find_rejection, parse_filters, parse_time
from opdkit.config.extract import ExtractConfig
from opdkit.errors import ConfigError, OpdkitError

DEEP: list = ["b"]
for _ in range(600):
    DEEP = [DEEP]


def verdict(expression: str, model: str | None = "gpt-4o", **metadata) -> str | None:
    told = Conversation("logs/a.jsonl", 1, [], model=model, metadata=metadata)
    return find_rejection(parse_filters([expression]), told, "openai")


@pytest.mark.parametrize(("expression", "metadata"), [
    ("model=gpt-4*", {}), ("model!=claude*", {}), ("model = gpt-4o", {}), ("format=openai", {}),
    ("source=*/a.jsonl", {}),
    ("model=claude*|gpt*", {}), ("language=en|de", {"language": "de"}), ("language=en", {"lang": "en"}),
    ("time>=2026-01-01", {"timestamp": "2026-01-01T00:00:00Z"}), ("time<=2026-01-01", {"created": 1767311999}),
    ("time=2026-01-02", {"timestamp": 1767312000000}), ("time<2026-01-01T12:00:00Z", {"time": "2026-01-01T11:59:59Z"}),
    ("time>=2026-01-01", {"records": [{"timestamp": "2026-03-01"}]}), ("metadata.task=retail", {"task": "retail"}),
    ("metadata.reward>0.5", {"reward": 1}), ("metadata.reward=1", {"reward": 1.0}), ("metadata.ok=true", {"ok": True}),
    ("metadata.id=1|1234567890123456789", {"id": 1234567890123456789}),
    ("metadata.id!=1234567890123456788", {"id": 1234567890123456789}),
    ("metadata.a.b=1", {"a": {"b": 1}}), ("metadata.a.b=1", {"a.b": "1"}), ("metadata.tags=b*", {"tags": ["a", "bc"]}),
    ("metadata.tags!=c", {"tags": ["a", "b"]}), ("metadata.version>=2.0", {"version": "10.1"}),
    ("metadata.day>=2026-01", {"day": "2026-01-05"}), ("metadata.task=[draft] *", {"task": "[draft] a"}),
    ("metadata.scores.ok=1", {"scores": [{"name": "ok", "value": 1}]}),
    ("metadata.tags=b", {"tags": [["a"], [[], "b"]]}), ("metadata.tags=b", {"tags": DEEP}),
])  # fmt: skip
def test_what_holds(expression, metadata):
    assert verdict(expression, **metadata) is None


@pytest.mark.parametrize(("expression", "metadata", "reason"), [
    ("model=claude*", {}, "filtered: model=claude*"), ("model!=gpt*", {}, "filtered: model!=gpt*"),
    ("language=en", {}, "filtered: no language"), ("language=en", {"language": None}, "filtered: no language"),
    ("language!=en", {}, "filtered: no language"), ("time>=2026-01-01", {}, "filtered: no time"),
    ("time>=2026-01-01", {"timestamp": "yesterday"}, "filtered: no time"),
    ("time>2026-01-01", {"timestamp": "2026-01-01T23:59:59Z"}, "filtered: time>2026-01-01"),
    ("metadata.reward>0.5", {"reward": 0.5}, "filtered: metadata.reward>0.5"),
    ("metadata.reward>0.5", {}, "filtered: no metadata.reward"),
    ("metadata.reward>0.5", {"reward": {}}, "filtered: no metadata.reward to compare"),
    ("metadata.reward>high", {"reward": 1}, "filtered: no metadata.reward to compare"),
    ("metadata.reward>1", {"reward": "high"}, "filtered: no metadata.reward to compare"),
    ("metadata.scores.ok=1", {"scores": [{"name": "no", "value": 1}, {"name": "ok"}]},
     "filtered: no metadata.scores.ok"),
    ("metadata.tags!=b", {"tags": ["a", "b"]}, "filtered: metadata.tags!=b"),
    ("metadata.tags!=b", {"tags": DEEP}, "filtered: metadata.tags!=b"),
    ("metadata.task!=[draft]", {"task": "[draft]"}, "filtered: metadata.task!=[draft]"),
    ("metadata.tags=b", {"tags": [[[]]]}, "filtered: no metadata.tags to compare"),
    ("metadata.tags!=b", {"tags": [{"x": 1}]}, "filtered: no metadata.tags to compare"),
    ("time>=2026-01-01", {"time": 3.2}, "filtered: no time"),
])  # fmt: skip
def test_what_does_not_hold_says_why(expression, metadata, reason):
    assert verdict(expression, **metadata) == reason


def test_a_session_without_a_model_is_not_guessed_about():
    assert verdict("model=*", model=None) == "filtered: no model"


@pytest.mark.parametrize(("expression", "words"), [
    ("model", "FIELD OP VALUE"), ("modell=x", "did you mean 'model'"), ("metadata=x", "no field 'metadata'"),
    ("time>=soon", "2026-01-31"), ("time>=2026", "2026-01-31"), ("time>=20260101", "2026-01-31"),
    ("time>=2026-13-45", "no such day"), ("language>en", "compare it with = or !="),
    ("model=", "no value"), ("metadata.stars>=4|5", "compare them with = or !="),
])  # fmt: skip
def test_a_wrong_filter_is_refused_at_once(tmp_path, expression, words):
    with pytest.raises(ConfigError) as caught:
        ExtractConfig(run=tmp_path, logs=("x",), filter=(expression,))
    assert words in str(caught.value)


def test_times_of_every_unit():
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    seconds = int(at.timestamp())
    for value in (
        seconds,
        seconds * 10**3,
        seconds * 10**6,
        seconds * 10**9,
        str(seconds),
        "2026-01-01T01:00:00+01:00",
        "2026-01-01 00:00:00 UTC",
        "2026/01/01 00:00",
    ):
        assert parse_time(value) == at
    assert [parse_time(v) for v in (None, True, -1, 1e400, float("nan"), [], "x", "UTC", "1/2/2026")] == [None] * 9


def test_filtered_sessions_are_counted_and_not_written(tmp_path):
    """A filter does not change the ids of sessions that stay, and `opdkit check` finds the counters right."""
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v", model="m1"), chat("u", "a", "v", model="m2"), {"x": 1},
                chat("u", "a", "v"), chat("u", "a", "v", model="m1"))  # fmt: skip
    summary = run(tmp_path / "run", log, filter=("model=m1",))
    found = tables(tmp_path / "run")
    assert [s["session_id"] for s in found["sessions"]] == ["log:1", "log:5"]
    assert [r["line"] for r in found["rejected"]] == [3]
    assert summary.counters.dropped == {"filtered: model=m1": 1, "filtered: no model": 1, "no messages": 1}
    assert summary.counters.total("log sessions unread") == 1
    assert check(CheckConfig(run=tmp_path / "run"))


def test_a_filter_that_leaves_nothing_says_so(tmp_path):
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v", model="m1"))
    with pytest.raises(OpdkitError, match=r"nothing can be trained on.*filtered: model=m2 \(1\)"):
        run(tmp_path / "run", log, filter=("model=m2",))
