"""A run with two small trainings on the same targets, both evaluated."""

import json
from pathlib import Path

from scored_runs import toy_sessions, write_run

from opdkit.config.evaluate import EvalConfig
from opdkit.config.train import TrainConfig
from opdkit.evaluate import stage as evaluate
from opdkit.train import stage as train

PROMPTS = 12  # half of them corrected


def train_named(run: Path, model: Path, name: str | None, objective: str, **options) -> None:
    train.run(TrainConfig(run=run, name=name, model=str(model), objective=objective, batch_turns=4, validate=0,
                          learning_rate=1e-2, device="cpu", **options))  # fmt: skip


def eval_config(run: Path, name: str | None, prompts: Path, **options) -> EvalConfig:
    return EvalConfig(run=run, name=name, prompts=str(prompts), device="cpu",
                      **{"max_new_tokens": 4, "samples": 1} | options)  # fmt: skip


def write_prompts(path: Path, word: str = "say") -> Path:
    rows = [{"id": f"p{n}", "domain": "even" if n % 2 == 0 else "odd", "prompt": f"{word} it {n}",
             "check": {"match": ["[a-m]"]}, "corrected": n < PROMPTS // 2} for n in range(PROMPTS)]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def two_trainings(folder: Path, model: Path) -> Path:
    """Write `folder/run` with the trainings a (binary) and b (opd), evaluated on `folder/prompts.jsonl`."""
    run = write_run(folder / "run", model, toy_sessions(4))
    prompts = write_prompts(folder / "prompts.jsonl")
    for name, objective in (("a", "binary"), ("b", "opd")):
        train_named(run, model, name, objective)
        evaluate.run(eval_config(run, name, prompts))
    return run
