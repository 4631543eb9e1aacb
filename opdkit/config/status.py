"""Options of `opdkit status`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument


@dataclass(frozen=True, kw_only=True)
class StatusConfig(CommandConfig):
    """`opdkit status`."""

    run: Path = argument("the run directory")
