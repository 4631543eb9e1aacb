"""Options of `opdkit init`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option
from opdkit.config.presets import PRESETS
from opdkit.config.shared import JUDGES, check_server


@dataclass(frozen=True, kw_only=True)
class InitConfig(CommandConfig):
    """`opdkit init`."""

    file: Path = argument("the file to write; - is standard output", default=Path("opdkit.toml"))
    model: str | None = option(None, "the student: a folder in Hugging Face format, or a name on the hub")
    preset: str | None = option(None, "how the student's chat template is to be called", choices=tuple(PRESETS))
    judge: str | None = option(None, "who judges", choices=JUDGES)
    judge_model: str | None = option(None, "the judge's model (default with --judge local: the student)")
    judge_url: str | None = option(None, "address of the judge's server")
    overwrite: bool = option(False, "replace the file if it is there")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_server("--judge-url", self.judge_url)
