"""Schedules: the objective of each phase, and the clip bounds and learning rate of each step.

Pure functions of the configuration.
"""

import dataclasses
import math
from dataclasses import dataclass

from opdkit.config.train import TrainConfig
from opdkit.errors import ConfigError
from opdkit.train.objective.terms import PRESETS, TERMS, Objective

FULL_LEARNING_RATE, LORA_LEARNING_RATE = 1e-5, 1e-4  # where the search for a rate starts


@dataclass(frozen=True)
class Position:
    """Position of an optimizer step in its cycle: number (from 1), scheduled rate, and this rate over the peak rate."""

    step_in_cycle: int
    rate: float
    relative_rate: float


def make_objectives(config: TrainConfig) -> list[Objective]:
    """Return the objective of each phase: the preset's weights, overridden by the options, and the other options.

    A given weight applies to the phases whose preset has that term; a term that no phase has is added to all phases.
    Raises ConfigError when a phase has no term left.
    """
    given = {name: getattr(config, f"{name}_weight") for name in TERMS}
    numbers = {f.name: getattr(config, f.name) for f in dataclasses.fields(Objective) if f.name != "weights"}
    preset = PRESETS[config.objective]
    in_any_phase = {name for weights in preset for name in weights}
    objectives = []
    for weights in preset:
        changed = {n: w for n, w in given.items() if w is not None and (n in weights or n not in in_any_phase)}
        objectives.append(Objective({name: w for name, w in (weights | changed).items() if w}, **numbers))
    if not all(objective.weights for objective in objectives):
        raise ConfigError(f"--objective {config.objective} has no term left: give one of its weights more than 0")
    return objectives


def choose_objective(objective: Objective, config: TrainConfig, step: int, steps: int) -> Objective:
    """Return the objective at `step` (from 1) of a cycle of `steps`: clip bounds move linearly from start to end."""
    low, high = (
        start if end is None else start + (end - start) * (step - 1) / max(1, steps - 1)
        for start, end in ((config.clip_low, config.clip_low_end), (config.clip_high, config.clip_high_end))
    )
    return dataclasses.replace(objective, clip_low=low, clip_high=high)


def find_position(config: TrainConfig, step: int, steps: int) -> Position:
    """Return the position of `step` (from 1) in a cycle of `steps`: linear warm-up, then constant or half a cosine."""
    peak = choose_first_rate(config) if config.learning_rate is None else config.learning_rate
    if step <= config.warmup_steps:
        relative_rate = step / config.warmup_steps
    elif config.schedule == "constant":
        relative_rate = 1.0
    else:
        progress = (step - 1 - config.warmup_steps) / max(1, steps - config.warmup_steps)
        relative_rate = 0.5 * (1 + math.cos(math.pi * progress))
    return Position(step, peak * relative_rate, relative_rate)


def choose_first_rate(config: TrainConfig) -> float:
    """Return the learning rate at which the search for a learning rate starts."""
    return LORA_LEARNING_RATE if config.lora_rank else FULL_LEARNING_RATE
