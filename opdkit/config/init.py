"""Options of `opdkit init`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option
from opdkit.config.presets import PRESETS
from opdkit.config.shared import shared_option


@dataclass(frozen=True, kw_only=True)
class InitConfig(CommandConfig):
    """Write a TOML file with every option, its meaning and its default."""

    file: Path = argument(Path("opdkit.toml"), "the file to write, - for stdout")
    model: str | None = shared_option("model", default=None)
    preset: str | None = option(None, "how to call the student's chat template", choices=tuple(PRESETS))
    judge: str | None = shared_option("judge")
    judge_model: str | None = shared_option("judge_model", more="default with --judge local: the student")
    judge_url: str | None = shared_option("judge_url")
    overwrite: bool = option(False, "replace the file if it exists")
