"""Options of `opdkit gate`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, did_you_mean, option
from opdkit.config.shared import REPEAT, shared_option
from opdkit.errors import ConfigError

# Checks other than right replies -> their labels in the tables.
CHECKS = {
    "drift": "drift (KL, nats per token)", "length": "reply length (tokens)", "cut_off": "cut off by the limit",
    "hint_echo": "hint echo", "refusal": "refusals", "loop": "end in a loop", "broken_call": "broken tool calls",
    "question": "nothing but questions", "confirmation": "empty confirmations",
    "no_call": "wrong replies without a tool call",
}  # fmt: skip


def check_names(names: tuple[str, ...], flag: str) -> None:
    """Raise ConfigError for a name that is not in CHECKS."""
    for name in names:
        if name not in CHECKS:
            raise ConfigError(f"{flag} is {name!r}; {did_you_mean(name, tuple(CHECKS))}")


@dataclass(frozen=True, kw_only=True)
class GateConfig(CommandConfig):
    """Say whether the trained model may replace the one before it, from what `opdkit eval` stored: exit code 0 or 1."""

    run: Path = argument(..., "the run directory, or RUN/NAME.training")
    max_loss: float | None = shared_option("max_loss")
    allow: tuple[str, ...] = option(
        (), f"ship even if this check fails; {', '.join(CHECKS)}; {REPEAT}", check=check_names
    )
    json: bool = shared_option("json")
