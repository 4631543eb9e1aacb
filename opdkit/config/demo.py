"""Options of `opdkit demo`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument


@dataclass(frozen=True, kw_only=True)
class DemoConfig(CommandConfig):
    """`opdkit demo`."""

    run: Path = argument("the run directory", default=Path("opdkit-demo"))
