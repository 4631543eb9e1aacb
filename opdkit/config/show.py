"""Options of `opdkit show`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option
from opdkit.errors import ConfigError

CHOICE, FORM = "Choice of turns", "Form"


@dataclass(frozen=True, kw_only=True)
class ShowConfig(CommandConfig):
    """`opdkit show`."""

    run: Path = argument("the run directory")
    turn_id: str | None = argument("a turn, shown whole", "default: a list of the run's turns", default=None)
    worst: int | None = option(None, "N turns with the lowest sum of advantages", unit="turns", low=1, panel=CHOICE)
    best: int | None = option(None, "N turns with the highest sum of advantages", unit="turns", low=1, panel=CHOICE)
    random: int | None = option(None, "N turns drawn by --seed", unit="turns", low=1, panel=CHOICE)
    seed: int = option(0, "seed of every random draw", low=0, panel=CHOICE)
    grep: str | None = option(
        None, "only turns that match a regular expression", "in request, reply or hints", panel=CHOICE
    )
    status: str | None = option(
        None, "only turns with this status", "reward_status or hint_status: failed, leak, reviewed ...", panel=CHOICE
    )
    max_turns: int = option(
        50,
        "most turns to list",
        "--worst, --best and --random have a number of their own",
        unit="turns",
        low=1,
        panel=CHOICE,
    )
    whole: bool = option(False, "show each of the turns whole", "as --worst, --best and --random do anyway", panel=FORM)
    one_line: bool = option(False, "one line per turn", "also with --worst, --best and --random", panel=FORM)
    logprobs: bool = option(False, "whole turns: log-probs of each token", "under student and teacher", panel=FORM)
    json: bool = option(
        False,
        "JSON on stdout instead of text",
        "one object with TURN_ID, else a list of whole turns or of one-line rows",
        panel=FORM,
    )

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
