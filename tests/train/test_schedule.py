"""Tests of how options become objectives, and of the learning rate and clip bounds of each step."""

import dataclasses
import math
from itertools import pairwise
from pathlib import Path

import pytest
from safetensors.torch import load_file
from scored_runs import train_config

from opdkit.config.train import ENOUGH_STEPS, MOST_EPOCHS, fit_epochs
from opdkit.errors import ConfigError
from opdkit.store.reading import read_all
from opdkit.train import stage as train
from opdkit.train.objective.terms import Objective
from opdkit.train.schedule import (
    FULL_LEARNING_RATE,
    LORA_LEARNING_RATE,
    choose_objective,
    find_position,
    make_objectives,
)


def weights(**options) -> list[dict[str, float]]:
    return [dict(o.weights) for o in make_objectives(train_config(Path("run"), Path("model"), **options))]


def test_a_preset_is_its_weights() -> None:
    assert weights(objective="blend") == [{"reward": 0.1, "divergence": 1.0}]
    assert weights(objective="hybrid") == [{"reward": 0.2, "support": 1.0}]
    assert weights(objective="alternate") == [{"reward": 1.0}, {"teacher": 1.0}]


def test_given_weights_win() -> None:
    assert weights(objective="opd", teacher_weight=2.0, divergence_weight=0.5) == [{"teacher": 2.0, "divergence": 0.5}]
    assert weights(objective="combine", reward_weight=0.0) == [{"teacher": 1.0}]
    assert weights(objective="alternate", reward_weight=3.0) == [{"reward": 3.0}, {"teacher": 1.0}]
    assert weights(objective="alternate", divergence_weight=0.5) == [
        {"reward": 1.0, "divergence": 0.5}, {"teacher": 1.0, "divergence": 0.5},
    ]  # fmt: skip


def test_no_term_is_no_objective() -> None:
    with pytest.raises(ConfigError, match="--objective alternate"):
        weights(objective="alternate", reward_weight=0.0)


def test_every_number_of_the_formulas_is_an_option() -> None:
    """The defaults of the options are those of Objective, and a changed option reaches it."""
    config = train_config(Path("run"), Path("model"), objective="opd")
    assert make_objectives(config) == [Objective({"teacher": 1.0})]
    numbers = [field for field in dataclasses.fields(Objective) if field.name != "weights"]
    changed = {"advantage_clip": 2.0, "clip_low": 0.1, "clip_high": 0.5, "dual_clip": 3.0, "divergence_alpha": 0.25,
               "forward_kl": 0.1, "anchor_weight": 0.1, "kl_coef": 0.1, "kl_estimator": "k3", "min_advantage": 0.2,
               "skip_first": 3, "confidence_weight": True, "behavior_cap": 5.0, "negative_below": 0.5,
               "aggregation": "turn-mean"}  # fmt: skip
    assert changed.keys() == {field.name for field in numbers}
    assert all(changed[field.name] != field.default for field in numbers)
    assert make_objectives(train_config(Path("run"), Path("model"), objective="opd", **changed)) == [
        Objective({"teacher": 1.0}, **changed)
    ]


def test_as_many_epochs_as_make_enough_steps() -> None:
    """The epochs make at least 90 steps, but are at most 10: for example, 7 epochs of 13 steps make 91."""
    assert {steps: fit_epochs(steps) for steps in (0, 1, 9, 10, 13, 90, 91, 10**6)} == {
        0: 10, 1: 10, 9: 10, 10: 9, 13: 7, 90: 1, 91: 1, 10**6: 1,
    }  # fmt: skip
    for steps in range(1, 200):
        epochs = fit_epochs(steps)
        assert epochs == MOST_EPOCHS or ENOUGH_STEPS <= epochs * steps < ENOUGH_STEPS + steps


def test_clip_bounds_move_linearly_from_the_first_step_to_the_last() -> None:
    config = train_config(Path("run"), Path("model"), clip_low=0.2, clip_low_end=0.1, clip_high=0.28)
    (objective,) = make_objectives(config)
    assert [choose_objective(objective, config, n, 5).clip_low for n in (1, 2, 3, 4, 5)] == pytest.approx(
        [0.2, 0.175, 0.15, 0.125, 0.1]
    )
    assert {choose_objective(objective, config, n, 5).clip_high for n in (1, 3, 5)} == {0.28}
    assert choose_objective(objective, config, 1, 1).clip_low == 0.2


# -- the learning rate ----------------------------------------------------------------------------------------------

# Share of the peak at each of six steps, two of them warm-up; the cosine is 1 at the first step after the warm-up.
SHARES = {
    "cosine": [1 / 2, 1, 1, (1 + math.sqrt(0.5)) / 2, 1 / 2, (1 - math.sqrt(0.5)) / 2],
    "constant": [1 / 2, 1, 1, 1, 1, 1],
}


@pytest.mark.parametrize("schedule", SHARES)
def test_the_rate_of_every_step(schedule: str) -> None:
    config = train_config(Path("run"), Path("model"), schedule=schedule, warmup_steps=2, learning_rate=0.4)
    positions = [find_position(config, step, 6) for step in range(1, 7)]
    assert [one.rate for one in positions] == pytest.approx([0.4 * share for share in SHARES[schedule]], rel=1e-12)
    assert [one.relative_rate for one in positions] == pytest.approx(SHARES[schedule], rel=1e-12)
    assert [one.step_in_cycle for one in positions] == [*range(1, 7)]


def test_the_default_rates_and_the_ends_of_the_schedule() -> None:
    for lora_rank, peak in ((0, FULL_LEARNING_RATE), (4, LORA_LEARNING_RATE)):
        config = train_config(Path("run"), Path("model"), learning_rate=None, lora_rank=lora_rank)
        rates = [find_position(config, step, 100).rate for step in range(1, 101)]
        assert rates[0] == peak
        assert rates[50] == pytest.approx(peak / 2)
        assert 0 < rates[-1] < peak / 1000
    assert find_position(config, 1, 1).rate == LORA_LEARNING_RATE


@pytest.mark.parametrize("schedule", SHARES)
def test_every_step_moves_the_weights_by_its_rate(run, plain_model_dir, schedule: str) -> None:
    """Metrics and weights show the rate: with both betas 0, AdamW moves a weight by rate x g / (|g| + 1e-8)."""
    options = {"beta1": 0.0, "beta2": 0.0, "weight_decay": 0.0, "batch_turns": 100, "epochs": 6, "keep_epochs": True}
    config = train_config(run, plain_model_dir, learning_rate=1e-3, warmup_steps=2, schedule=schedule, **options)
    train.run(config)
    expected = [1e-3 * share for share in SHARES[schedule]]
    assert [row["learning_rate"] for row in read_all(run, "metrics")] == pytest.approx(expected, rel=1e-12)
    folders = [plain_model_dir, *(run / f"train/epochs/{epoch:03d}/model" for epoch in range(1, 7))]
    weights = [load_file(folder / "model.safetensors") for folder in folders]
    for rate, (before, after) in zip(expected, pairwise(weights), strict=True):
        for name in after:  # matrices and norms, whose weight decay differs
            assert (after[name] - before[name]).abs().max().item() == pytest.approx(rate, rel=2e-3), name
