"""Options of `opdkit calibrate`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option
from opdkit.config.shared import REPEAT, shared_option
from opdkit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig(CommandConfig):
    """Measure judges against labels of people, and how many votes are worth paying for."""

    run: Path = argument(..., "the run directory")
    labels: Path | None = argument(
        None,
        "JSONL or CSV of labels that people gave; turn_id (or session_id) and reward: -1, 0, 1, good, neutral, bad, "
        "true or false; several rows of a turn are labels of several people, named or not in a column rater; default: "
        "the random sample of `opdkit review`",
    )
    other_run: tuple[str, ...] = option((), f"run directory of another judge on the same turns, to compare; {REPEAT}")
    session_reward: str = option(
        "last", "a session's reward, to compare with its label; mean: its sign", choices=("last", "mean", "min")
    )
    kappa_weights: str = option(
        "none",
        "Cohen's kappa: how distance counts; none: +1 for -1 is as wrong as +1 for 0",
        choices=("none", "linear", "quadratic"),
    )
    tolerance: float = option(
        0.01, "accuracy and coverage that fewer votes may cost; each may fall by this", low=0.0, high=1.0
    )
    json: bool = shared_option("json")
    seed: int = shared_option("seed")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({Path(run).resolve() for run in (str(self.run), *self.other_run)}) <= len(self.other_run):
            raise ConfigError("--other-run names the same run twice, or RUN itself; name the run of another judge")
