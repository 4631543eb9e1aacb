"""Tests that sample_data is what its README says, and what its script makes."""

import importlib
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sample_world import DATA, asked_order, is_true_of_call, labels

from opdkit.config.extract import ExtractConfig
from opdkit.evaluate.checks import read_prompts
from opdkit.extract import stage as extract
from opdkit.store.reading import read_all


@pytest.fixture(scope="module")
def build() -> Any:
    sys.path.insert(0, str(DATA))
    try:
        yield importlib.import_module("build")
    finally:
        sys.path.remove(str(DATA))


def lines(path: str) -> list[Any]:
    return [json.loads(line) for line in (DATA / path).read_text(encoding="utf-8").splitlines()]


def test_the_model_is_small_and_safe() -> None:
    from safetensors import safe_open

    files = list((DATA / "model").iterdir())
    assert sum(f.stat().st_size for f in files) <= 6_000_000
    assert not [f for f in files if f.suffix in (".bin", ".pt", ".pkl")]
    assert json.loads((DATA / "model" / "config.json").read_text())["model_type"] == "qwen3"
    with safe_open(DATA / "model" / "model.safetensors", "pt") as weights:
        parameters = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
    assert parameters <= 3_000_000


def test_the_logs_hold_what_they_should() -> None:
    text = (DATA / "logs" / "openai.jsonl").read_text(encoding="utf-8").splitlines()
    openai, sharegpt = [json.loads(line) for line in text[:-1]], lines("logs/sharegpt.jsonl")
    with pytest.raises(json.JSONDecodeError):
        json.loads(text[-1])  # cut off, so that there is something to reject
    openclaw = Counter(record["session_id"] for record in lines("logs/openclaw.jsonl"))
    assert len(openai) + len(sharegpt) + len(openclaw) >= 200
    replies = [sum(m["role"] == "assistant" for m in row["messages"]) for row in openai]
    assert min(replies) == 1
    assert max(replies) >= 5
    messages = [m for row in openai for m in row["messages"]]
    assert any(m.get("tool_calls") for m in messages)
    named = json.loads((DATA / "model" / "config.json").read_text())["_name_or_path"]
    assert {row["model"] for row in openai} == {named}  # the model's own logs: on-policy, so there is no warning
    assert any(m["role"] == "tool" and m["content"].startswith("error") for m in messages)
    assert any(m["role"] == "tool" and not m["content"].startswith("error") for m in messages)


def test_held_out_prompts_are_held_out(build: Any) -> None:
    logs = "".join((DATA / "logs" / f"{name}.jsonl").read_text() for name in ("openai", "sharegpt", "openclaw"))
    prompts = lines("prompts.jsonl")
    assert {row["corrected"] for row in prompts} == {True, False}
    for row in prompts:
        assert row["prompt"] not in logs


def test_every_style_is_told_from_the_others(build: Any) -> None:
    """The demo's claims rest on the checks: a reply in one style passes the pattern of its style and no other."""
    for topic in build.TOPICS:
        for style in topic.styles:
            for item in topic.items:
                assert topic.style_of(style.reply(item)) is style, (topic.name, style.name, item)


@pytest.mark.parametrize(
    ("text", "call", "true"),
    [
        ("error: missing required argument order_id", '{"id": "F2"}', True),
        ("error: missing required argument order_id", '{"order_id": "C2"}', False),
        ("Pass the order as order_id to track_order.", '{"id": "C2"}', True),
        ("Pass the order as order_id to track_order.", '{"order_id": "F2"}', False),
        ("error: unknown order #C2", '{"order_id": "C2"}', True),
        ("error: unknown order #C2", '{"order_id": "E2"}', False),
        ("error: unknown order #F2", '{"order_id": "F2"}', False),
        ("error: unknown order #C2", '{"id": "C2"}', False),
        ("Look up the order that the user asked for.", '{"order_id": "C2"}', True),
        ("Look up the order that the user asked for.", '{"order_id": "F2"}', False),
        ("Give the temperature in Celsius.", '{"order_id": "C2"}', False),
    ],
)
def test_what_is_true_of_a_call(text: str, call: str, true: bool) -> None:
    """The user asked for F2."""
    assert is_true_of_call(text, call, "F2") is true


def test_the_tool_says_what_is_wrong(tmp_path: Path) -> None:
    """For every call in the logs, the tool's result and the label say the same."""
    extract.run(ExtractConfig(run=tmp_path, logs=(str(DATA / "logs"),)))
    truth = {row["turn_id"]: row for row in labels()}
    seen = Counter[str | None]()
    for session in read_all(tmp_path, "sessions"):
        messages = session["messages"]
        for index, result in enumerate(messages):
            if result["role"] != "tool":
                continue
            (call,) = messages[index - 1]["tool_calls"]
            arguments, asked = call["arguments"], asked_order(messages[:index])
            label = truth[f"{session['session_id']}:{index - 1}"]
            seen[label["wanted"]] += 1
            order = json.loads(arguments).get("order_id")
            assert label["wanted"] == (None if order == asked else "order_id" if order is None else "asked_order")
            if label["wanted"] is None:
                assert (json.loads(result["content"])["order"], label["reward"]) == (asked, 1)
            else:
                assert is_true_of_call(result["content"], arguments, asked), (arguments, asked, result["content"])
                assert label["reward"] == -1
    assert {None, "order_id"} <= seen.keys() <= {None, "order_id", "asked_order"}


def test_an_order_is_right_with_its_argument_and_its_number(build: Any) -> None:
    """The held-out prompts' checks accept a right call and reject two calls that are wrong in one thing each."""
    (topic,) = (topic for topic in build.TOPICS if topic.uses_tool)
    right, habit = topic.style("order_id").reply, topic.style("id").reply
    orders = [prompt for prompt in read_prompts(DATA / "prompts.jsonl") if prompt.domain == "orders"]
    assert len(orders) == 4 * 3
    for prompt in orders:
        asked = asked_order(prompt.messages)
        assert prompt.check.passes(right(asked))
        assert not prompt.check.passes(habit(asked))
        assert not prompt.check.passes(right(f"{asked[0]}{int(asked[1]) % 9 + 1}"))


def test_a_slip_is_mended_with_the_order_that_was_asked_for(build: Any) -> None:
    """In the lessons, after a call about a wrong order, the reply to learn is about the right one, hinted or not."""
    source, mended = build.lessons(random.Random(5)), 0
    for _ in range(4000):
        kind, lesson = next(source)
        if kind != "policy" or lesson.messages[-1]["role"] != "tool" or "order" not in lesson.messages[-1]["content"]:
            continue
        calls = lesson.reply["tool_calls"]
        if lesson.messages[-1]["content"].startswith("error") and "argument" not in lesson.messages[-1]["content"]:
            assert json.loads(calls[0]["arguments"]) == {"order_id": asked_order(lesson.messages)}
            mended += 1
    assert mended > 20


def test_prompts_and_labels_come_from_the_script(build: Any, tmp_path: Path) -> None:
    build.write_prompts(tmp_path / "prompts.jsonl")
    assert (tmp_path / "prompts.jsonl").read_text() == (DATA / "prompts.jsonl").read_text()
    turns = {row["turn_id"].split(":")[0] for row in lines("labels.jsonl")}
    assert turns == {"openai", "sharegpt", "openclaw"}


def test_lessons_repeat_for_a_seed(build: Any) -> None:
    first, again = (build.lessons(random.Random(7)) for _ in range(2))
    assert [next(first) for _ in range(50)] == [next(again) for _ in range(50)]


@pytest.mark.slow
def test_the_logs_are_sampled_from_the_model(build: Any, tmp_path: Path) -> None:
    """The first conversations have the same words if they are played again."""
    sessions = build.play(DATA / "model", 12, 0)
    logged = [json.loads(line) for line in (DATA / "logs" / "openai.jsonl").read_text().splitlines()[:12]]
    for session, row in zip(sessions, logged, strict=True):
        assert [m["content"] for m in session.messages] == [m["content"] for m in row["messages"]]
