"""From options to objectives: the weights of each phase, and the clip bounds of each step. Pure."""

from dataclasses import replace

from opdkit.config.train import TrainConfig
from opdkit.errors import ConfigError
from opdkit.train.objective import PRESETS, Objective


def objectives(config: TrainConfig) -> list[Objective]:
    """The objective of each phase: the preset's weights under those given, and the options of the formulas.

    A given weight counts where the preset has the term; a term that it has nowhere is added to all phases. Raises
    ConfigError when no term is left.
    """
    given = {
        "reward": config.reward_weight,
        "teacher": config.teacher_weight,
        "support": config.support_weight,
        "divergence": config.divergence_weight,
    }
    preset = PRESETS[config.objective]
    anywhere = {name for weights in preset for name in weights}
    phases = []
    for weights in preset:
        changed = {name: w for name, w in given.items() if w is not None and (name in weights or name not in anywhere)}
        phases.append(_objective(config, {name: w for name, w in (weights | changed).items() if w}))
    if not all(phase.weights for phase in phases):
        raise ConfigError(f"--objective {config.objective} has no term left: give one of its weights more than 0")
    return phases


def _objective(config: TrainConfig, weights: dict[str, float]) -> Objective:
    return Objective(
        weights=weights,
        advantage_clip=config.advantage_clip,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
        divergence_alpha=config.divergence_alpha,
        kl_coef=config.kl_coef,
        kl_estimator=config.kl_estimator,
        min_advantage=config.min_advantage,
        skip_first=config.skip_first,
        confidence_weight=config.confidence_weight,
        behavior_cap=config.behavior_cap,
        blame_below=config.blame_below,
        aggregation=config.aggregation,
    )


def at_step(objective: Objective, config: TrainConfig, step: int, steps: int) -> Objective:
    """The objective in a step (from 1) of `steps`: its clip bounds on their way."""
    return replace(
        objective,
        clip_low=_moved(config.clip_low, config.clip_low_end, step, steps),
        clip_high=_moved(config.clip_high, config.clip_high_end, step, steps),
    )


def _moved(start: float, end: float | None, step: int, steps: int) -> float:
    if end is None or steps == 1:
        return start
    return start + (end - start) * (step - 1) / (steps - 1)
