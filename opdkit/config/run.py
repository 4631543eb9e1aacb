"""Options of `opdkit run`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import StageConfig, argument, option, parse_pairs
from opdkit.config.shard import parse_shard
from opdkit.config.shared import JUDGES, OBJECTIVES, session_limit
from opdkit.errors import ConfigError

ORDER = ("extract", "judge", "teacher", "train")  # of a pipeline


@dataclass(frozen=True, kw_only=True)
class RunConfig(StageConfig):
    """`opdkit run`: extract, judge, teacher and train with one configuration."""

    logs: tuple[str, ...] = argument("logs, as for extract")
    limit: int | None = session_limit()
    model: str | None = option(None, "the student: a folder in Hugging Face format, or a name on the hub")
    judge: str | None = option(None, "who judges", choices=JUDGES)
    judge_model: str | None = option(None, "the judge's model (default with --judge local: the student)")
    judge_url: str | None = option(None, "address of the judge's server")
    objective: str | None = option(None, "what to train on", choices=OBJECTIVES)
    learning_rate: float | None = option(None, "peak learning rate of the training", low=0.0)
    seed: int | None = option(None, "seed of every random draw", low=0)
    config: Path | None = option(None, "TOML file, one table a stage; flags win")
    set: tuple[str, ...] = option((), "any option of any stage, as STAGE.OPTION=VALUE; may be given repeatedly")

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_pairs(self.set, "--set")

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN is a file, or in one of several processes."""
        super().check_inputs()
        if parse_shard(self.shard)[1] > 1:
            raise ConfigError("run does all parts in one process; for several, start the stages one by one")
