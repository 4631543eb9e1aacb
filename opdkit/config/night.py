"""Options of `opdkit night`, `opdkit forget` and `opdkit models`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.conditions import parse_filters
from opdkit.config.fields import HOW, WHAT, WHERE, CommandConfig, argument, option, parse_pairs
from opdkit.config.gate import CHECKS, check_names
from opdkit.config.shared import REPEAT, shared_option
from opdkit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class HomeConfig(CommandConfig):
    """Options of every command about a series of nights."""

    home: Path = argument(..., "the folder of all nights, their models and what was read of the logs")


@dataclass(frozen=True, kw_only=True)
class NightConfig(HomeConfig):
    """Train on what is new in the logs since the last night, and promote the model if it is better."""

    logs: tuple[str, ...] = argument((), "log files that grow, or folders of them; here or in --config")
    model: str = shared_option("model", WHAT, "of the first night; each later one begins with the promoted model")
    served_as: tuple[str, ...] = shared_option("served_as", WHAT, "default: every name in the logs")
    judge: str = shared_option("judge", WHAT, default=...)
    judge_model: str | None = shared_option("judge_model", WHAT, "default with --judge local: --model")
    judge_url: str | None = shared_option("judge_url", WHAT)
    prompts: str | None = WHAT.option(
        None, "JSONL file of held-out prompts with checks; tests in addition to those from the log"
    )
    least_hints: int = HOW.option(
        20, "fewest new replies with a hint for a training; with fewer that no training has tried, the night waits "
        "for the next",
        unit="replies", low=1,
    )  # fmt: skip
    replay: float = HOW.option(
        0.1, "share of the turns trained on that come from earlier nights; praised or accepted ones, against "
        "forgetting", low=0.0, high=0.9,
    )  # fmt: skip
    holdout: float = HOW.option(
        0.2, "share of the sessions to keep for eval; the same ones every night", low=0.05, high=0.9
    )
    max_loss: float | None = shared_option("max_loss", HOW)
    allow: tuple[str, ...] = HOW.option(
        (), f"ship even if this check fails; {', '.join(CHECKS)}; {REPEAT}", check=check_names
    )
    config: Path | None = WHERE.option(None, "TOML file with one table per stage; flags win; and a table for night")
    set: tuple[str, ...] = HOW.option((), f"any option, as STAGE.OPTION=VALUE; {REPEAT}", check=parse_pairs)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judge == "batch":
            raise ConfigError("--judge batch waits for files of answers, and nobody brings them at night; choose "
                              "endpoint or local")  # fmt: skip
        for log in self.logs:
            if log == "-" or log.startswith("hf:"):
                raise ConfigError(f"LOGS is {log}: nights follow files that grow; name files or folders")

    def check_inputs(self) -> None:
        """Raise ConfigError when HOME is a file, no log is named, or the --prompts file does not exist."""
        super().check_inputs()
        if not self.logs:
            raise ConfigError("LOGS is missing: name log files or folders, here or as logs under [night] in --config")
        if self.prompts is not None and not Path(self.prompts).exists():
            raise ConfigError(f"--prompts {self.prompts} does not exist; name a JSONL file of prompts and checks")


@dataclass(frozen=True, kw_only=True)
class ForgetConfig(HomeConfig):
    """Take sessions out of all nights, and train again whatever has learned from them."""

    where: tuple[str, ...] = option(
        ..., f"sessions with FIELD=VALUE, as for extract --filter; such as metadata.user=u-17; all must hold; {REPEAT}",
        check=parse_filters,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ModelsConfig(HomeConfig):
    """List the models of all nights, promote one, or go back to the one before."""

    promote: int | None = option(None, "promote the model of this night; 0 is the model before the first night", low=0)
    back: bool = option(False, "promote the model that the promoted one was trained from")
    json: bool = shared_option("json")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.back and self.promote is not None:
            raise ConfigError("--promote names a model, and --back another one: leave one out")
