"""Options of `opdkit check`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option
from opdkit.config.shared import shared_option


@dataclass(frozen=True, kw_only=True)
class CheckConfig(CommandConfig):
    """Verify a whole run: digests, schemas, keys between tables, ranges, finite values. Exit code 1: damage."""

    run: Path = argument(..., "the run directory")
    json: bool = shared_option("json")
    deep: bool = option(False, "also read all weights of the trained model")
    clean: bool = option(False, "remove what killed processes left behind; without it, they are only listed")
    recompute: bool = option(
        False, "remove damaged parts; and those computed from them, so that the stages compute them again"
    )
