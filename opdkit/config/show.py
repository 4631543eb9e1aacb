"""Options of `opdkit show`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, Panel, argument
from opdkit.config.shared import shared_option
from opdkit.errors import ConfigError

CHOICE, FORM = Panel("Choice of turns"), Panel("Form")


@dataclass(frozen=True, kw_only=True)
class ShowConfig(CommandConfig):
    """Show turns: a list, or one whole, with its votes, hints and the advantage of every token."""

    run: Path = argument(..., "the run directory")
    turn_id: str | None = argument(None, "a turn, shown whole; default: a list of the run's turns")
    worst: int | None = CHOICE.option(None, "N turns with the lowest sum of advantages", unit="turns", low=1)
    best: int | None = CHOICE.option(None, "N turns with the highest sum of advantages", unit="turns", low=1)
    random: int | None = CHOICE.option(None, "N turns drawn by --seed", unit="turns", low=1)
    seed: int = shared_option("seed", CHOICE)
    grep: str | None = CHOICE.option(None, "only turns that match a regular expression; in request, reply or hints")
    status: str | None = CHOICE.option(
        None, "only turns with this status; of reward or hint: failed, leak, reviewed ..."
    )
    max_turns: int = CHOICE.option(50, "most turns to list; not with --worst, --best and --random", unit="turns", low=1)
    whole: bool = FORM.option(False, "show each of the turns whole; as --worst, --best and --random do anyway")
    one_line: bool = FORM.option(False, "one line per turn; also with --worst, --best and --random")
    logprobs: bool = FORM.option(False, "whole turns: log-probs of each token; under student and teacher")
    json: bool = shared_option("json", FORM, "one object with TURN_ID, else a list of whole turns or of one-line rows")

    def __post_init__(self) -> None:
        super().__post_init__()
        picks = [f"--{name}" for name in ("worst", "best", "random") if getattr(self, name) is not None]
        if len(picks) > 1:
            raise ConfigError(f"{picks[0]} and {picks[1]} choose different turns; give one of them")
        picks += [f"--{name}" for name in ("grep", "status") if getattr(self, name) is not None]
        if self.turn_id is not None and picks:
            raise ConfigError(f"{picks[0]} chooses among all turns; leave out TURN_ID, or the option")
        if self.one_line and (self.whole or self.turn_id is not None):
            raise ConfigError(f"--one-line is one line per turn, {'--whole' if self.whole else 'TURN_ID'} shows it "
                              "whole; give one of them")  # fmt: skip
