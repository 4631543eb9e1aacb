"""Tests of training with little memory: no gradient counts twice, and a turn too large by itself ends it by name."""

import itertools
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scored_runs import Said, Toy, write_run
from small_memory import room_for
from toy_turns import toy_turn
from typer.testing import CliRunner

from opdkit.cli import app
from opdkit.config.train import TrainConfig
from opdkit.errors import OpdkitError
from opdkit.model.memory import Budget
from opdkit.store.reading import read_all
from opdkit.train import stage as train
from opdkit.train import step
from opdkit.train.forwards import Tree

OPTIONS = {"device": "cpu", "batch_turns": 16, "learning_rate": 1e-3, "objective": "combine", "validate": 0}


def steps(run) -> list[tuple[float, float, int]]:
    return [(row["loss"], row["grad_norm"], row["reward_tokens"]) for row in read_all(run, "metrics")]


def same_steps(found, expected) -> None:
    assert len(steps(found)) == len(steps(expected))
    for some, others in zip(steps(found), steps(expected), strict=True):
        assert some == pytest.approx(others, rel=1e-4)


@pytest.mark.parametrize("batch_by", ["session", "turn"])
def test_a_step_that_did_not_fit_is_computed_again(run, tmp_path, plain_model_dir, batch_by, capsys) -> None:
    """With fewer tokens per forward, loss and gradient are the same, as the divisors are those of the whole step."""
    whole = shutil.copytree(run, tmp_path / "whole")
    train.run(TrainConfig(run=whole, model=str(plain_model_dir), batch_by=batch_by, **OPTIONS))
    capsys.readouterr()
    with room_for(300) as room:
        train.run(TrainConfig(run=run, model=str(plain_model_dir), batch_by=batch_by, **OPTIONS))
    assert room.refused
    assert re.search(r"training: [\d,]+ tokens", capsys.readouterr().err)
    same_steps(run, whole)


def test_what_was_accumulated_before_does_not_count_twice(run, tmp_path, plain_model_dir, monkeypatch) -> None:
    """Two forwards have left their gradients when the third does not fit and the step is computed again."""
    whole = shutil.copytree(run, tmp_path / "whole")
    config = TrainConfig(run=whole, model=str(plain_model_dir), micro_batch_tokens=200, **OPTIONS)
    train.run(config)
    calls, forward = itertools.count(1), step.add_gradients

    def third_fails(*args, **options):
        if next(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return forward(*args, **options)

    monkeypatch.setattr(step, "add_gradients", third_fails)
    train.run(replace(config, run=run))
    assert next(calls) > 6
    same_steps(run, whole)


def test_turns_that_fit_by_themselves_are_read_so(run, tmp_path, plain_model_dir, monkeypatch) -> None:
    """Memory may run out for the turns of a session together, even if they have no more tokens than the longest."""
    whole = shutil.copytree(run, tmp_path / "whole")
    train.run(TrainConfig(run=whole, model=str(plain_model_dir), **OPTIONS))
    forward, refused = step.add_gradients, list[int]()

    def one_fits(training, batch, trees, **options):
        turns = [i for tree in trees for i in tree.replies]
        if len(turns) > 1:
            refused.append(len(turns))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return forward(training, batch, trees, **options)

    monkeypatch.setattr(step, "add_gradients", one_fits)
    train.run(TrainConfig(run=run, model=str(plain_model_dir), **OPTIONS))
    assert refused
    same_steps(run, whole)


def test_several_processes_name_a_turn_that_no_smaller_budget_splits() -> None:
    """They read the session of a turn that is longer than the budget as a whole."""
    turns = [toy_turn("a:1"), toy_turn("a:3")]
    options = SimpleNamespace(micro_batch_tokens=8192, gradient_checkpointing=False)
    training: Any = SimpleNamespace(accelerator=SimpleNamespace(num_processes=2), config=options)
    for tokens, message in ((8000, "--micro-batch-tokens 4000"), (30_000, "turn a:1 of .* even alone")):
        with pytest.raises(OpdkitError, match=message):
            step.lower_budget(training, Budget("training"), [Tree((0, 1), tokens)], turns, splits=True)


def test_a_turn_too_large_alone_ends_the_training_and_is_named(tmp_path, plain_model_dir) -> None:
    """If the turn were left out silently, the objective would be another."""
    toys = [Toy("small", [Said("red", 1)]), Toy("large", [Said("blue " * 250, -1)])]
    path = write_run(tmp_path / "run", plain_model_dir, toys)
    with room_for(400):
        done = CliRunner().invoke(
            app, ["train", str(path), "--model", str(plain_model_dir), "--objective", "binary", "--device", "cpu"]
        )
        with pytest.raises(OpdkitError, match="turn large:1 of "):
            train.run(TrainConfig(run=path, model=str(plain_model_dir), objective="binary", device="cpu"))
    assert done.exit_code == 1
    assert not (path / "train" / "model").exists()
