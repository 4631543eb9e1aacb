"""Options of `opdkit blame`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.conditions import check_field
from opdkit.config.fields import CommandConfig, argument, option
from opdkit.config.shared import shared_option


@dataclass(frozen=True, kw_only=True)
class BlameConfig(CommandConfig):
    """Say which users, sessions and turns of the log taught the model what it now does worse."""

    run: Path = argument(..., "the run directory, or RUN/NAME.training")
    by: str | None = option(
        None, "what the blame of turns is summed over; session, model, language, source or metadata.NAME; default: the "
        "user if the log names one, else the session", check=check_field)  # fmt: skip
    domain: str | None = option(None, "only what got worse in this domain; default: in all of them")
    lines: int = option(10, "lines to show of each table", unit="lines", low=1)
    device: str = shared_option("device")
    json: bool = shared_option("json", more="all turns and groups")
