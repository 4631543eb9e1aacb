"""Options of `opdkit export`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option
from opdkit.config.shared import shared_option
from opdkit.errors import ConfigError

TARGETS = ("trl-sdft", "trl-kto", "trl-dpo", "trl-sft", "verl", "openai")
REVIEW, RULES = "review-csv", "rules"
MAX_RULES = 20
WITH_NEUTRAL = ("trl-sft", "openai")


@dataclass(frozen=True, kw_only=True)
class ExportConfig(CommandConfig):
    """Write the judged turns as other trainers read them (TRL's, verl, OpenAI's), or the hints as a system prompt."""

    run: Path = argument(..., "the run directory")
    out: Path | None = argument(
        None, "the file to write: .parquet or .jsonl, for rules .md; default: RUN/export/TARGET, as Parquet if possible"
    )
    to: str | None = option(
        None,
        "what to write; for TRL's SDFT, KTO, DPO or SFT trainer, verl, OpenAI's fine-tuning, people who decide, a "
        "model (the hints as rules of its system prompt)",
        choices=(*TARGETS, REVIEW, RULES),
    )
    import_reviews: Path | None = option(None, f"read decisions back from what --to {REVIEW} wrote")
    include_neutral: bool = option(False, f"also imitate replies with reward 0; for {' and '.join(WITH_NEUTRAL)}")
    max_rules: int = option(MAX_RULES, "most rules to write; the model reads them in each request", low=1)
    limit: int | None = shared_option("limit")
    overwrite: bool = option(False, "replace the file if it exists")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.to is None) == (self.import_reviews is None):
            raise ConfigError(f"pass --to TARGET, one of {', '.join((*TARGETS, REVIEW, RULES))}; or --import-reviews "
                              "FILE to read decisions back")  # fmt: skip
        if self.include_neutral and self.to not in WITH_NEUTRAL:
            raise ConfigError(f"--include-neutral is for {' and '.join(WITH_NEUTRAL)}; nothing else imitates replies")
        if self.import_reviews is not None and self.out is not None:
            raise ConfigError("--import-reviews reads a file and writes none; leave OUT out")
        if self.limit is not None and self.to not in (*TARGETS, RULES):
            raise ConfigError("--limit is for what trainers and models read; decisions are written and read as a whole")
        if self.max_rules != MAX_RULES and self.to != RULES:
            raise ConfigError(f"--max-rules is for --to {RULES}")
