"""Tests of branches of a conversation: the teacher and the training read their common prefix once."""

from pathlib import Path

import pytest
from runs import talk, write_extract
from scored_runs import train_config

from opdkit.chat.template import Chat
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.judge import stage as judge
from opdkit.model.load import load_tokenizer
from opdkit.store.reading import read_all
from opdkit.teacher import stage as teacher
from opdkit.train import stage as train
from opdkit.train.targets import load_prompts, load_targets

COMMON = ["red blue", "green green", "blue red", "red red"]
ENDS = [["white", "black", "thanks!"], ["black white", "white", "That's wrong."], ["green", "red", "thanks!"]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write three branches of one conversation, and another one; shared replies train in the first branch only."""
    names = ["log:1", "log:1#branch-2", "log:1#branch-3", "log:2"]
    sessions = {name: talk(*COMMON, *end) for name, end in zip(names, [*ENDS, ENDS[0]], strict=True)}
    copies = {f"{name}:{n}": {"trainable": False, "skip_reason": "duplicate"} for name in names[1:3] for n in (1, 3)}
    run = write_extract(tmp_path / "run", sessions, per_part=4, turns=copies)
    judge.run(JudgeConfig(run=run, judge="rules", shard="0/1"))
    return run


def nodes(run: Path, model: Path, *, of_all: bool) -> int:
    """Return the number of distinct prefixes of prompts with their replies, per conversation or over all (`of_all`)."""
    turns = load_targets(run)
    prompts = load_prompts(run, turns, Chat(load_tokenizer(str(model)), {}))
    beginnings = set()
    for turn in turns:
        ids = [*prompts[turn.turn_id].tolist(), *turn.response_ids.tolist()]
        beginnings |= {("" if of_all else turn.session_id.partition("#")[0], *ids[:n]) for n in range(1, len(ids) + 1)}
    return len(beginnings)


def test_tokens_read_are_the_nodes_of_the_tree(run: Path, plain_model_dir: Path) -> None:
    summary = teacher.run(TeacherConfig(run=run, model=str(plain_model_dir), device="cpu", shard="0/1"))
    assert len(list(read_all(run, "targets"))) == 8
    assert summary.counters.total("tokens read") == nodes(run, plain_model_dir, of_all=True)
    train.run(train_config(run, plain_model_dir, objective="binary", batch_turns=100))
    (row,) = read_all(run, "metrics")
    assert row["tokens_read"] == nodes(run, plain_model_dir, of_all=False)
