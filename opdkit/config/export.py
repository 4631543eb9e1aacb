"""Options of `opdkit export`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option
from opdkit.errors import ConfigError

TARGETS = ("trl-sdft", "trl-kto", "trl-sft", "verl", "openai")
REVIEW = "review-csv"
WITH_NEUTRAL = ("trl-sft", "openai")


@dataclass(frozen=True, kw_only=True)
class ExportConfig(CommandConfig):
    """`opdkit export`: judged turns in the form that another trainer, or a person with a spreadsheet, reads."""

    run: Path = argument("the run directory")
    out: Path | None = argument("the file to write, .parquet or .jsonl where the target has both (default: "
                                "RUN/export/TARGET, as Parquet or as what the target has)", default=None)  # fmt: skip
    to: str | None = option(None, "who reads it: TRL's SDFT, KTO or SFT trainer, verl, OpenAI's fine-tuning, or "
                            "people who fill in decisions", choices=(*TARGETS, REVIEW))  # fmt: skip
    from_: Path | None = option(None, f"read back the decisions that were filled in to what --to {REVIEW} wrote")
    neutral: bool = option(False, "trl-sft and openai: imitate replies with reward 0, too, not only those with +1")
    limit: int | None = option(None, "only the first N sessions, for a cheap trial", unit="sessions", low=1)
    overwrite: bool = option(False, "replace the file if it is there")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.to is None) == (self.from_ is None):
            raise ConfigError(f"say --to TARGET, one of {', '.join((*TARGETS, REVIEW))}; or --from FILE to read "
                              "decisions back")  # fmt: skip
        if self.neutral and self.to not in WITH_NEUTRAL:
            raise ConfigError(f"--neutral is for {' and '.join(WITH_NEUTRAL)}; nothing else imitates replies")
        if self.from_ is not None and self.out is not None:
            raise ConfigError("--from reads a file and writes none; leave OUT away")
        if self.limit is not None and self.to not in TARGETS:
            raise ConfigError(f"--limit is for {', '.join(TARGETS)}; decisions are written and read as a whole")
