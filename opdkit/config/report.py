"""Options of `opdkit report`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option


@dataclass(frozen=True, kw_only=True)
class ReportConfig(CommandConfig):
    """Write the run as one HTML file that opens offline: funnel, votes, hints, advantages, training."""

    run: Path = argument(..., "the run directory")
    out: Path | None = option(None, "the file to write; default: RUN/report.html, or RUN/report-redacted.html")
    redacted: bool = option(
        False, "without any text of users: numbers, curves and counts; names are numbered, no turn is shown whole"
    )
    turns: int = option(
        200, "turns shown whole, token by token; typical ones, strong ones, and some of each kind", unit="turns", low=0
    )
    list_size: int = option(10_000, "turns in the searchable list; a sample of a longer run", unit="turns", low=0)
    max_mb: float = option(
        3.0, "size of the file; texts are cut, then fewer turns shown whole, until it fits", unit="MB", low=0.25
    )
