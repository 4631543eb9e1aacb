"""Options of `opdkit compare`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option
from opdkit.config.shared import shared_option


@dataclass(frozen=True, kw_only=True)
class CompareConfig(CommandConfig):
    """Say which of several trainings is better, on the same held-out prompts: of one run, or of several."""

    run: Path = argument(..., "the run directory")
    others: tuple[str, ...] = argument(
        (), "names of its trainings (`train --name`), or other run directories; default: all of its trainings"
    )
    prompts: str | None = option(
        None, "JSONL file of held-out prompts with checks; for trainings that `opdkit eval` has not measured yet"
    )
    replies: int = option(3, "prompts to show, whose replies differ; first those whose verdicts differ, too", low=0)
    json: bool = shared_option("json", more="all replies that differ")
