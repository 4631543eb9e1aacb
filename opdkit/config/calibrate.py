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
    labels: Path | None = argument("JSONL or CSV with turn_id (or session_id) and reward: -1, 0, 1, good, neutral, "
                                   "bad, true or false (default: the rewards decided in `opdkit review`)",
                                   default=None)  # fmt: skip
    session_reward: str = option("last", "what of a session's rewards a label of the session is compared with: the "
                                 "last one, the sign of their mean, or the lowest", choices=SESSION_REWARDS,
                                 )  # fmt: skip
    kappa_weights: str = option("none", "Cohen's kappa: how much worse it is to miss by two than by one",
                                choices=KAPPA_WEIGHTS)  # fmt: skip
    tolerance: float = option(0.01, "fewer votes are worth it when accuracy and coverage are lower by no more than "
                              "this", low=0.0, high=1.0)  # fmt: skip
    json: bool = option(False, "JSON on stdout instead of tables")
    seed: int = option(0, "seed of the intervals", low=0)
