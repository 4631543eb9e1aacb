"""Options of `opdkit demo`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument


@dataclass(frozen=True, kw_only=True)
class DemoConfig(CommandConfig):
    """Run the whole loop on sample_data on a CPU: a model improved by its own logs."""

    run: Path = argument(Path("opdkit-demo"), "the run directory")
