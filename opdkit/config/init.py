"""Options of `opdkit init`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option
from opdkit.config.presets import PRESETS
from opdkit.config.shared import JUDGES, judge_model, judge_url, student


@dataclass(frozen=True, kw_only=True)
class InitConfig(CommandConfig):
    """`opdkit init`."""

    file: Path = argument("the file to write; - is standard output", default=Path("opdkit.toml"))
    model: str | None = student(None)
    preset: str | None = option(None, "how to call the student's chat template", choices=tuple(PRESETS))
    judge: str | None = option(None, "who judges", choices=JUDGES)
    judge_model: str | None = judge_model("default with --judge local: the student")
    judge_url: str | None = judge_url()
    overwrite: bool = option(False, "replace the file if it exists")
