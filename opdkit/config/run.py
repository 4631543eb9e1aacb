"""Options of `opdkit run`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import HOW, WHAT, WHERE, StageConfig, argument, parse_pairs
from opdkit.config.shard import parse_shard
from opdkit.config.shared import OBJECTIVES, REPEAT, shared_option
from opdkit.errors import ConfigError

ORDER = ("extract", "judge", "teacher", "train")


@dataclass(frozen=True, kw_only=True)
class PipelineConfig(StageConfig):
    """Options of every command that configures the whole pipeline."""

    logs: tuple[str, ...] = argument(
        (), "log files or folders of them, -, or hf:NAME[:SPLIT]; as for extract; here or in --config"
    )
    limit: int | None = shared_option("limit", WHAT)
    model: str | None = shared_option("model", WHAT, default=None)
    judge: str | None = shared_option("judge", WHAT, "needed, here or in --config")
    judge_model: str | None = shared_option("judge_model", WHAT, "default with --judge local: the student")
    judge_url: str | None = shared_option("judge_url", WHAT)
    objective: str | None = HOW.option(None, "what to learn from", choices=OBJECTIVES)
    learning_rate: float | None = HOW.option(None, "peak learning rate", low=0.0)
    seed: int | None = shared_option("seed", HOW, default=None)
    criterion: Path | None = shared_option("criterion", HOW, expert=True)
    wording: Path | None = shared_option("wording", HOW)
    config: Path | None = WHERE.option(None, "TOML file with one table per stage; flags win")
    set: tuple[str, ...] = HOW.option((), f"any option, as STAGE.OPTION=VALUE; {REPEAT}", check=parse_pairs)

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN is a file, or if this is one of several processes."""
        super().check_inputs()
        if parse_shard(self.shard)[1] > 1:
            raise ConfigError("run does all parts in one process; for several, start the stages one by one")


@dataclass(frozen=True, kw_only=True)
class RunConfig(PipelineConfig):
    """Extract, judge, teacher and train, with one configuration."""

    dry_run: bool = shared_option("dry_run", WHERE, "what depends on stages that are not done yet is bounded")
    price: str | None = shared_option("price", WHERE)
    measure: int = shared_option("measure", WHERE)
