"""Options of `opdkit demo`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option
from opdkit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DemoConfig(CommandConfig):
    """Run the whole loop on sample_data on a CPU: a model improved by its own logs."""

    run: Path = argument(Path("opdkit-demo"), "the run directory")
    samples: Path | None = option(
        None, "only write the sample data here; logs, prompts and the tiny model, as a new folder"
    )

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN is a file, or --samples names a path that exists."""
        super().check_inputs()
        if self.samples is not None and self.samples.exists():
            raise ConfigError(f"--samples: {self.samples} already exists; name a new folder")
