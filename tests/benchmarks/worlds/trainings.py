"""Trainings in a world: with opdkit's defaults, and paths of trainings that nothing holds back."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any
from unittest.mock import patch

from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.errors import OpdkitError
from opdkit.evaluate.checks import CORRECTED, UNCORRECTED, read_prompts
from opdkit.store.reading import read_all, summary_of
from opdkit.train import stage
from opdkit.train.best_state import is_broken
from opdkit.train.validation import Validation

from ..learning.cells import Cell
from ..learning.runs import ALONE, branch, final_model, replies_of
from . import Built, built_in
from .measure import measure_model, measure_replies

EPOCHS = 2  # of all objectives but the default, and of paths
VALIDATED = ("step", "score", "hint_kl", "kept_kl", "forgotten", "tokens_read")  # columns of `validations` in a cell
# Shares of a path's steps after which the student is measured: most are early, when too high a rate breaks it.
MARKS = (1 / 24, 1 / 12, 1 / 6, 1 / 3, 1 / 2, 3 / 4, 1.0)
MOVED = 1 / 6  # share of a path before which the student has hardly moved
AGAIN_SAMPLES, AGAIN_SEED = 64, 1000  # of a repeated measurement: replies per prompt, and offset of the seed


def measure_before(work: Path, world: str, seed: int, again: int = 0) -> JSON:
    """Return the shares of held-out replies that pass before training; `again`: number of new replies per prompt."""
    built = built_in(work, world)
    return _measure(built, built.model, seed, again)


def _measure(built: Built, folder: Path, seed: int, again: int) -> JSON:
    return (
        measure_model(built, folder, seed + AGAIN_SEED, samples=again) if again else measure_model(built, folder, seed)
    )


def measure_training(
    work: Path, world: str, seed: int, objective: str, rate: float | None, source: str = "run", again: int = 0
) -> JSON:
    """Return the outcome of a training with opdkit's defaults: the shares of the model that it writes, if any.

    `source` is the run in the world's folder whose targets are trained on. `again`: number of new replies per prompt.
    The result's `tokens` are those of the teacher stage, of training steps, and of validation; its `alarms` are the
    steps after which these `validations` found the student broken.
    """
    built = built_in(work, world)
    with _run(built, source, work, f"{objective}-{rate}-{seed}") as run:
        found: JSON = {"model": False}
        with suppress(OpdkitError):  # the training wrote no model
            epochs = None if objective == TrainConfig.objective else EPOCHS
            stage.run(_config(built, run, seed, objective, rate, epochs=epochs))
            metrics, validations = (list(read_all(run, table)) for table in ("metrics", "validations"))
            found = {
                "model": True, **_measure(built, final_model(run), seed, again),
                "peak_rate": max(row["learning_rate"] for row in metrics),
                "steps": len(metrics), "tokens": {
                    "scored": summary_of(run, "teacher").counters.total("tokens read"),
                    "trained": sum(row["tokens_read"] for row in metrics),
                    "validated": sum(row["tokens_read"] for row in validations),
                },
                "validations": [{name: row[name] for name in VALIDATED} for row in validations],
                "alarms": [row["step"] for n, row in enumerate(validations, start=1) if is_broken(validations[:n])],
            }  # fmt: skip
    return found


@contextmanager
def trained(built: Built, work: Path, seed: int, objective: str, rate: float | None) -> Iterator[Path]:
    """Yield the model of a training, which must write one; without a rate, the world's model before training."""
    if rate is None:
        yield built.model
        return
    with _run(built, "run", work, f"taught-{rate:g}-{os.getpid()}") as run:
        stage.run(_config(built, run, seed, objective, rate))
        yield final_model(run)


def measure_path(work: Path, world: str, seed: int, objective: str, rate: float) -> JSON:
    """Return scores and true shares along a training without trust region, anchor and raised epsilon, to its end."""
    built = built_in(work, world)
    prompts, marks = read_prompts(built.prompts), list[JSON]()
    measure = Validation.measure

    def measure_with_truth(validation: Validation, student: Any, step: int) -> JSON:
        row = measure(validation, student, step)
        student.eval()
        samples = built.world.samples if len(marks) > MARKS.index(MOVED) else 2
        replies = replies_of(student, validation.chat, prompts, seed, samples, built.world.max_new_tokens)
        student.train()
        shares = measure_replies(replies)
        marks.append({name: row[name] for name in VALIDATED}
                     | {name: shares[name] for name in (CORRECTED, UNCORRECTED)})  # fmt: skip
        marks[-1]["alarm"] = is_broken(marks)
        return row

    with (
        _run(built, "run", work, f"path-{objective}-{rate:g}-{seed}") as run,
        patch.object(Validation, "measure", measure_with_truth),
        patch.multiple(
            stage, check_better=lambda *_: None,
            **dict.fromkeys(("has_stalled", "has_two_broken"), lambda *_: False),
            choose_validation_steps=lambda steps, *_: {max(1, round(steps * mark)) for mark in MARKS},
        ),
    ):  # fmt: skip
        options = ALONE | {"validate": TrainConfig.validate, "epochs": EPOCHS}
        try:
            stage.run(_config(built, run, seed, objective, rate, **options))
            error, trained = None, sum(row["tokens_read"] for row in read_all(run, "metrics"))
        except OpdkitError as broken:  # the loss is no longer finite
            error, trained = str(broken), None
    return {"marks": marks, "error": error, "trained": trained}


def _config(built: Built, run: Path, seed: int, objective: str, rate: float | None, **options: Any) -> TrainConfig:
    return TrainConfig(run=run, model=str(built.model), seed=seed, objective=objective, device="cpu",
                       learning_rate=rate, checkpoint_every=0, **options)  # fmt: skip


@contextmanager
def _run(built: Built, source: str, work: Path, name: str) -> Iterator[Path]:
    """Yield a new run that shares the targets of a world's run, and remove it afterwards."""
    run = work / "runs" / f"{built.folder.name}-{source.replace('/', '-')}-{name}"
    try:
        yield branch(built.folder / source, run)
    finally:
        rmtree(run, ignore_errors=True)


# -- cells ----------------------------------------------------------------------------------------------------------


def before_cell(world: str, seed: int) -> Cell:
    return Cell(f"before-{world}-{seed}", measure_before, {"world": world, "seed": seed})


def before_of(cell: Cell) -> Cell:
    """Return the cell of the model before a training; a noisy world has the clean world's model."""
    return before_cell(cell.settings["world"].partition("-")[0], cell.settings["seed"])


def again(cell: Cell) -> Cell:
    """Return the cell that measures the same model again, on new and more replies."""
    return Cell(f"again-{cell.name}", cell.measure, cell.settings | {"again": AGAIN_SAMPLES})


def training_cell(world: str, seed: int, objective: str, rate: float | None, source: str = "run") -> Cell:
    """Return the cell of a training; `rate` None: opdkit finds the rate."""
    name = f"train-{world}-{source.replace('/', '-')}-{objective}-{'own' if rate is None else f'{rate:g}'}-{seed}"
    settings = {"world": world, "seed": seed, "objective": objective, "rate": rate, "source": source}
    return Cell(name, measure_training, settings)


def path_cell(world: str, seed: int, objective: str, rate: float) -> Cell:
    settings = {"world": world, "seed": seed, "objective": objective, "rate": rate}
    return Cell(f"path-{world}-{objective}-{rate:g}-{seed}", measure_path, settings)
