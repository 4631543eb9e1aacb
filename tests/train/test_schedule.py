"""From options to objectives."""

from pathlib import Path

import pytest
from scored_runs import train_config

from opdkit.errors import ConfigError
from opdkit.train.objective.terms import Objective
from opdkit.train.schedule import objective_at, objectives


def weights(**options) -> list[dict[str, float]]:
    return [dict(o.weights) for o in objectives(train_config(Path("run"), Path("model"), **options))]


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
    """No option has two defaults, and each one arrives."""
    config = train_config(Path("run"), Path("model"), objective="opd")
    assert objectives(config) == [Objective({"teacher": 1.0})]
    changed = {"advantage_clip": 2.0, "clip_low": 0.1, "clip_high": 0.5, "dual_clip": 3.0, "divergence_alpha": 0.25,
               "kl_coef": 0.1, "kl_estimator": "k1", "min_advantage": 0.2, "skip_first": 3, "confidence_weight": True,
               "behavior_cap": 5.0, "negative_below": 0.5, "aggregation": "turn-mean"}  # fmt: skip
    assert objectives(train_config(Path("run"), Path("model"), objective="opd", **changed)) == [
        Objective({"teacher": 1.0}, **changed)
    ]


def test_clip_bounds_move_linearly_from_the_first_step_to_the_last() -> None:
    config = train_config(Path("run"), Path("model"), clip_low=0.2, clip_low_end=0.1, clip_high=0.28)
    (objective,) = objectives(config)
    assert [objective_at(objective, config, n, 5).clip_low for n in (1, 2, 3, 4, 5)] == pytest.approx(
        [0.2, 0.175, 0.15, 0.125, 0.1]
    )
    assert {objective_at(objective, config, n, 5).clip_high for n in (1, 3, 5)} == {0.28}
    assert objective_at(objective, config, 1, 1).clip_low == 0.2
