"""Options of `opdkit status`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument


@dataclass(frozen=True, kw_only=True)
class StatusConfig(CommandConfig):
    """Show how far each stage is: parts, rows, rate, time left, last errors."""

    run: Path = argument(..., "the run directory")
