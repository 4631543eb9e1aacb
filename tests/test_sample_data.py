"""sample_data is what its README says, and what its script makes."""

import importlib
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent.parent / "sample_data"


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
    assert max(replies) >= 6
    messages = [m for row in openai for m in row["messages"]]
    assert any(m.get("tool_calls") for m in messages)
    named = json.loads((DATA / "model" / "config.json").read_text())["_name_or_path"]
    assert {row["model"] for row in openai} == {named}  # its own logs: on-policy, and no warning about it
    assert any(m["role"] == "tool" and m["content"].startswith("error") for m in messages)
    assert any(m["role"] == "tool" and not m["content"].startswith("error") for m in messages)


def test_held_out_prompts_are_held_out(build: Any) -> None:
    logs = "".join((DATA / "logs" / f"{name}.jsonl").read_text() for name in ("openai", "sharegpt", "openclaw"))
    prompts = lines("prompts.jsonl")
    assert {row["corrected"] for row in prompts} == {True, False}
    for row in prompts:
        assert row["prompt"] not in logs


def test_every_style_is_told_from_the_others(build: Any) -> None:
    """The checks decide what the demo claims: a reply in one style passes its own pattern and no other."""
    for topic in build.TOPICS:
        for style in topic.styles:
            for item in topic.items:
                assert topic.style_of(style.reply(item)) is style, (topic.name, style.name, item)


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
    """The first conversations, played again: the same words."""
    sessions = build.play(DATA / "model", 12, 0)
    logged = [json.loads(line) for line in (DATA / "logs" / "openai.jsonl").read_text().splitlines()[:12]]
    for session, row in zip(sessions, logged, strict=True):
        assert [m["content"] for m in session.messages] == [m["content"] for m in row["messages"]]
