"""Measurements of a world: its run, judged and scored, and what a model does on its held-out prompts."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.template import Chat
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.evaluate.checks import CORRECTED, UNCORRECTED, HeldOutPrompt, read_prompts
from opdkit.extract.stage import run as extract
from opdkit.judge.stage import run as judge
from opdkit.store.reading import read_all
from opdkit.teacher.stage import run as teach

from ..learning.runs import first_replies, replies_of
from .build import Built


def prepared(built: Built, run: Path) -> Path:
    """Make the run that trainings of a world begin from: extracted, judged by rules, scored by the model itself."""
    extract(ExtractConfig(run=run, logs=(str(built.logs),)))
    judge(JudgeConfig(run=run, judge="rules"))
    teach(TeacherConfig(run=run, model=str(built.model)))
    return run


def accuracy(
    model: Path, prompts: Path | Sequence[HeldOutPrompt], seed: int, samples: int = 4, max_new_tokens: int = 128
) -> JSON:
    """Return the share of replies that pass, of what the log corrects and of what it does not; at temperature 1."""
    asked = read_prompts(prompts) if isinstance(prompts, Path) else list(prompts)
    return _shares(first_replies(model, asked, seed, samples, max_new_tokens))


def accuracy_of(
    model: Any, chat: Chat, prompts: Sequence[HeldOutPrompt], seed: int, samples: int, max_new_tokens: int
) -> JSON:
    """Return the same for a model in memory."""
    return _shares(replies_of(model, chat, list(prompts), seed, samples, max_new_tokens))


def _shares(replies: Sequence[Any]) -> JSON:
    passed: dict[bool, list[bool]] = {True: [], False: []}
    for reply in replies:
        passed[bool(reply.prompt.corrected)].append(bool(reply.passed))
    return {name: sum(passed[kind]) / len(passed[kind])
            for name, kind in ((CORRECTED, True), (UNCORRECTED, False)) if passed[kind]}  # fmt: skip


def hinted_accuracy(built: Built, run: Path, seed: int) -> JSON:
    """Return the shares of replies as wanted to held-out prompts with hints of the run for the same wish."""
    wishes = {row["turn_id"]: row["wish"] for row in _rows(built.labels)}
    hints: dict[str, list[str]] = {}
    for verdict in read_all(run, "verdicts"):
        if verdict["hint"] and (wish := wishes[verdict["turn_id"]]):
            hints.setdefault(wish, []).append(verdict["hint"])
    wished = {row["id"]: row["wish"] for row in _rows(built.prompts)}
    prompts = [p for p in read_prompts(built.prompts) if p.corrected]
    hinted = [replace(p, messages=with_hint(p.messages, hints[wished[p.id]][k % len(hints[wished[p.id]])], "last-user"))
              for k, p in enumerate(prompts)]  # fmt: skip
    return accuracy(built.model, hinted, seed, built.world.samples, built.world.max_new_tokens)


def judged_right(built: Built, run: Path) -> JSON:
    """Return the shares of the rules judge's verdicts that agree with the truth."""
    truth = {row["turn_id"]: row for row in _rows(built.labels)}
    verdicts = list(read_all(run, "verdicts"))
    rewards = [v["reward"] == truth[v["turn_id"]]["reward"] for v in verdicts]
    hints = [bool(v["hint"]) == bool(truth[v["turn_id"]]["wish"]) for v in verdicts]
    return {"turns": len(verdicts), "hints": sum(bool(v["hint"]) for v in verdicts),
            "rewards_right": sum(rewards) / len(rewards), "hints_right": sum(hints) / len(hints)}  # fmt: skip


def _rows(path: Path) -> list[JSON]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
