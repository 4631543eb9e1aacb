"""Options of `opdkit export`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config import CommandConfig, argument, option
from opdkit.errors import ConfigError

TARGETS = ("trl-sdft", "trl-kto", "trl-sft", "verl", "openai")
WITH_NEUTRAL = ("trl-sft", "openai")


@dataclass(frozen=True, kw_only=True)
class ExportConfig(CommandConfig):
    """`opdkit export`: judged turns in the form that another trainer reads."""

    run: Path = argument("the run directory")
    out: Path | None = argument("the file to write, .parquet or .jsonl where the target has both (default: "
                                "RUN/export/TARGET, as Parquet or as what the target has)", default=None)  # fmt: skip
    to: str = option(..., "who reads it: TRL's SDFT, KTO or SFT trainer, verl, or OpenAI's fine-tuning",
                     choices=TARGETS)  # fmt: skip
    neutral: bool = option(False, "trl-sft and openai: imitate replies with reward 0, too, not only those with +1")
    limit: int | None = option(None, "only the first N sessions, for a cheap trial", unit="sessions", low=1)
    overwrite: bool = option(False, "replace the file if it is there")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neutral and self.to not in WITH_NEUTRAL:
            raise ConfigError(f"--neutral is for {' and '.join(WITH_NEUTRAL)}; --to {self.to} has no use for it")
