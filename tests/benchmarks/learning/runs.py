"""Runs of the benchmark: the stages of opdkit on sample_data, and the models that they train."""

import shutil
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from opdkit.chat.template import Chat
from opdkit.commands.demo import sample_data
from opdkit.config.evaluate import EvalConfig
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.evaluate.checks import HeldOutPrompt, read_prompts
from opdkit.evaluate.generation import generate, prompt_ids
from opdkit.evaluate.replies import check_replies
from opdkit.evaluate.stage import run as evaluate
from opdkit.extract.stage import run as extract
from opdkit.judge.stage import run as judge
from opdkit.model.load import context_length, load_model, load_tokenizer
from opdkit.store.reading import read_all
from opdkit.teacher.stage import run as teach
from opdkit.train.stage import run as train

DATA = sample_data()
MODEL = DATA / "model"
PROMPTS = DATA / "prompts.jsonl"
SESSIONS = 88  # first sessions of the log: 200 turns
REPLIES = 2  # replies that the teacher writes to a hinted prompt
# Each objective is compared by itself, at its own rate: without anchor, limit per step, or choice of the best state.
ALONE: JSON = {"anchor_weight": 0.0, "step_limit": 0.0, "epsilon": 0.0, "validate": 0}
SAMPLES = 6  # replies to every held-out prompt
MAX_NEW_TOKENS = 64
# run -> options of `opdkit teacher`
SCORED_OTHERWISE: dict[str, JSON] = {
    "base-written": {"teacher_samples": REPLIES, "max_new_tokens": MAX_NEW_TOKENS},  # more replies per hinted prompt
    "base-longest": {"teacher_hint": "longest"},
    "base-top4": {"top_k": 4},
}


def judged(work: Path, sessions: int = SESSIONS) -> Path:
    """Make the run that trainings start from: sample_data, judged and scored by the sample model."""
    run = base_of(work, sessions)
    extract(ExtractConfig(run=run, logs=(str(DATA / "logs"),)))
    judge(JudgeConfig(run=run, judge="local", judge_model=str(MODEL), max_new_tokens=MAX_NEW_TOKENS, limit=sessions))
    teach(TeacherConfig(run=run, model=str(MODEL)))
    return run


def scored_otherwise(work: Path, name: str) -> Path:
    """Make the same run with targets from other options of `opdkit teacher` (SCORED_OTHERWISE)."""
    run = work / name
    if not run.exists():
        branch(work / "base", run, ("extract", "judge"))
    teach(TeacherConfig(run=run, model=str(MODEL), **SCORED_OTHERWISE[name]))
    return run


def base_of(work: Path, sessions: int) -> Path:
    """Return the folder of the run that `judged` makes."""
    return work / ("base" if sessions == SESSIONS else f"base-{sessions}")


def branch(source: Path, run: Path, stages: tuple[str, ...] = ("extract", "judge", "teacher")) -> Path:
    """Make a new run that shares finished stages of another run."""
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    for stage in stages:
        (run / stage).symlink_to((source / stage).resolve(), target_is_directory=True)
    return run


def trained(run: Path, model: Path, options: JSON, seed: int, epochs: int) -> JSON:
    """Train `model` on a run; return the cost, and the last step's approximate KL to the old policy."""
    start = time.monotonic()
    train(TrainConfig(run=run, model=str(model), seed=seed, epochs=epochs, checkpoint_every=0,
                      **(ALONE | options)))  # fmt: skip
    rows = list(read_all(run, "metrics"))
    return {
        "seconds": time.monotonic() - start,
        "tokens": sum(row["tokens_read"] for row in rows),
        "steps": len(rows),
        "approx_kl": rows[-1]["approx_kl"],
    }


def final_model(run: Path) -> Path:
    return run / "train" / "model"


def epoch_model(run: Path, epoch: int) -> Path:
    """Return the folder of the model after an epoch; only the option `keep_epochs` keeps it."""
    return run / "train" / "epochs" / f"{epoch:03d}" / "model"


# -- what a model does ----------------------------------------------------------------------------------------------


def passed(folder: Path, seed: int, samples: int = SAMPLES) -> dict[str, float]:
    """Return domain -> share of first replies to held-out prompts, sampled at temperature 1, that pass their checks."""
    found = defaultdict(list)
    for reply in first_replies(folder, read_prompts(PROMPTS), seed, samples):
        found[reply.prompt.domain].append(bool(reply.passed))
    return {domain: sum(values) / len(values) for domain, values in found.items()}


def first_replies(
    folder: Path, prompts: list[HeldOutPrompt], seed: int, samples: int, max_new_tokens: int = MAX_NEW_TOKENS
) -> list[Any]:
    """Return sampled and checked replies of the model in a folder, grouped by prompt."""
    model = load_model(str(folder), device="cpu", dtype="float32")
    chat = Chat(load_tokenizer(str(folder)), {}, model.generation_config.eos_token_id)
    return replies_of(model, chat, prompts, seed, samples, max_new_tokens)


def replies_of(
    model: Any, chat: Chat, prompts: list[HeldOutPrompt], seed: int, samples: int, max_new_tokens: int
) -> list[Any]:
    """Return sampled and checked replies of a model, grouped by prompt and in the order of their streams."""
    config = EvalConfig(run=Path("-"), prompts=str(PROMPTS), samples=samples, max_new_tokens=max_new_tokens, seed=seed)
    asked = [(p, prompt_ids(chat, p, max_new_tokens, context_length(model))) for p in prompts]
    return check_replies(generate("after", model, chat, asked, config, greedy=False), config)


def scores(run: Path, seed: int, samples: int = SAMPLES) -> list[JSON]:
    """Return the scores by `opdkit eval` of a run's trained model and of the model before training."""
    evaluate(EvalConfig(run=run, prompts=str(PROMPTS), samples=samples, max_new_tokens=MAX_NEW_TOKENS, seed=seed))
    return list(read_all(run, "scores"))
