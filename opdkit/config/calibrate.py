"""Options of `opdkit calibrate`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option

KAPPA_WEIGHTS = ("none", "linear", "quadratic")
SESSION_REWARDS = ("last", "mean", "min")


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig(CommandConfig):
    """`opdkit calibrate`: the judge against labels that people gave."""

    run: Path = argument("the run directory")
    labels: Path | None = argument(
        "JSONL or CSV of labels that people gave",
        "with turn_id (or session_id) and reward: -1, 0, 1, good, neutral, bad, true or false; default: the rewards "
        "decided in `opdkit review`",
        default=None,
    )
    session_reward: str = option(
        "last",
        "a session's reward, to compare with its label",
        "the last one, the sign of the mean, or the lowest",
        choices=SESSION_REWARDS,
    )
    kappa_weights: str = option(
        "none",
        "Cohen's kappa: how distance counts",
        "how much worse it is to miss by two than by one",
        choices=KAPPA_WEIGHTS,
    )
    tolerance: float = option(
        0.01,
        "accuracy and coverage to give up for fewer votes",
        "fewer votes are advised when both are lower by no more than this",
        low=0.0,
        high=1.0,
    )
    json: bool = option(False, "JSON on stdout instead of text")
    seed: int = option(0, "seed of every random draw", low=0)
