"""Measurements of a world: its run, judged and scored, and a model's replies to its held-out prompts."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.messages import message
from opdkit.chat.template import Chat
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.evaluate.checks import CORRECTED, UNCORRECTED, HeldOutPrompt, read_prompts
from opdkit.extract.stage import run as extract
from opdkit.judge.stage import run as judge
from opdkit.model.load import load_model, load_tokenizer
from opdkit.store.reading import read_all
from opdkit.teacher.stage import run as teach

from ..learning.runs import first_replies, replies_of
from .build import Built


def prepared(built: Built, run: Path) -> Path:
    """Make the run that a world's trainings start from: extracted, judged by rules, scored by the model itself."""
    extract(ExtractConfig(run=run, logs=(str(built.logs),)))
    judge(JudgeConfig(run=run, judge="rules"))
    teach(TeacherConfig(run=run, model=str(built.model)))
    return run


def measure_model(
    built: Built, folder: Path, seed: int, system: str | None = None, *, samples: int | None = None
) -> JSON:
    """Return the shares of a model's replies to held-out prompts (temperature 1) that pass, and mean lengths in tokens.

    `system` is added to the system prompts. `samples`: replies per prompt; default: the world's.
    """
    model = load_model(str(folder), device="cpu", dtype="float32")
    if not writes(model):
        return {CORRECTED: 0.0, UNCORRECTED: 0.0, "prompt_tokens": None, "reply_tokens": None}
    chat = Chat(load_tokenizer(str(folder)), {}, model.generation_config.eos_token_id)
    prompts = [with_system(prompt, system) for prompt in read_prompts(built.prompts)]
    samples = samples or built.world.samples
    return measure_replies(replies_of(model, chat, prompts, seed, samples, built.world.max_new_tokens))


def writes(model: torch.nn.Module) -> bool:
    """Return True if all weights are finite: else a model writes nothing."""
    return all(bool(weight.isfinite().all()) for weight in model.parameters())


def measure_replies(replies: Sequence[Any]) -> JSON:
    """Return the shares of replies that pass, to corrected and to uncorrected prompts, and mean lengths in tokens."""
    passed: dict[bool, list[bool]] = {True: [], False: []}
    for reply in replies:
        passed[bool(reply.prompt.corrected)].append(bool(reply.passed))
    shares = {name: sum(passed[kind]) / len(passed[kind])
              for name, kind in ((CORRECTED, True), (UNCORRECTED, False)) if passed[kind]}  # fmt: skip
    lengths = [(len(reply.sequence.prompt_ids), len(reply.sequence.response_ids)) for reply in replies]
    read, written = (sum(numbers) / len(numbers) for numbers in zip(*lengths, strict=True))
    return shares | {"prompt_tokens": read, "reply_tokens": written}


def with_system(prompt: HeldOutPrompt, system: str | None) -> HeldOutPrompt:
    """Return a held-out prompt with a text at the end of its system prompt, which is made if there is none."""
    first, *rest = prompt.messages
    if system is None:
        return prompt
    if first["role"] == "system":
        return replace(prompt, messages=[first | {"content": f"{first['content']}\n\n{system}"}, *rest])
    return replace(prompt, messages=[message("system", system), first, *rest])


def hinted_accuracy(built: Built, run: Path, seed: int) -> JSON:
    """Return the shares of right replies to held-out prompts that have a hint of the run for the same wish."""
    wishes = {row["turn_id"]: row["wish"] for row in _rows(built.labels)}
    hints: dict[str, list[str]] = {}
    for verdict in read_all(run, "verdicts"):
        if verdict["hint"] and (wish := wishes[verdict["turn_id"]]):
            hints.setdefault(wish, []).append(verdict["hint"])
    wished = {row["id"]: row["wish"] for row in _rows(built.prompts)}
    prompts = [p for p in read_prompts(built.prompts) if p.corrected]
    hinted = [replace(p, messages=with_hint(p.messages, hints[wished[p.id]][k % len(hints[wished[p.id]])], "last-user"))
              for k, p in enumerate(prompts)]  # fmt: skip
    return measure_replies(first_replies(built.model, hinted, seed, built.world.samples, built.world.max_new_tokens))


def judged_right(built: Built, run: Path) -> JSON:
    """Return the shares of the rules judge's rewards that are right, and of turns with a hint exactly if one is due.

    The words of the hints are not compared.
    """
    truth = {row["turn_id"]: row for row in _rows(built.labels)}
    verdicts = list(read_all(run, "verdicts"))
    rewards = [v["reward"] == truth[v["turn_id"]]["reward"] for v in verdicts]
    hints = [bool(v["hint"]) == bool(truth[v["turn_id"]]["wish"]) for v in verdicts]
    return {"turns": len(verdicts), "hints": sum(bool(v["hint"]) for v in verdicts),
            "rewards_right": sum(rewards) / len(rewards), "hints_right": sum(hints) / len(hints)}  # fmt: skip


def _rows(path: Path) -> list[JSON]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
