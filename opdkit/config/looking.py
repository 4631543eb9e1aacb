"""Options of the commands that look at a run, and of the demo."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option


@dataclass(frozen=True, kw_only=True)
class StatusConfig(CommandConfig):
    """`opdkit status`."""

    run: Path = argument("the run directory")


@dataclass(frozen=True, kw_only=True)
class CheckConfig(CommandConfig):
    """`opdkit check`."""

    run: Path = argument("the run directory")
    json: bool = option(False, "JSON on stdout instead of a table")
    deep: bool = option(False, "also read all weights of the trained model")
    recompute: bool = option(False, "remove damaged parts, and those computed from them, to be done again")


@dataclass(frozen=True, kw_only=True)
class DemoConfig(CommandConfig):
    """`opdkit demo`."""

    run: Path = argument("the run directory", default=Path("opdkit-demo"))
