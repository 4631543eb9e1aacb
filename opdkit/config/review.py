"""Options of `opdkit review`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option


@dataclass(frozen=True, kw_only=True)
class ReviewConfig(CommandConfig):
    """Serve the report to a person who accepts, edits or strikes hints and rewards."""

    run: Path = argument(..., "the run directory")
    port: int = option(0, "port of 127.0.0.1 to serve on, 0 for any", low=0, high=65535)
    reviewer: str | None = option(None, "the name on your decisions; default: your login name")
    open: bool = option(False, "also open the page in this machine's browser")
