"""Options of `opdkit show`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option
from opdkit.errors import ConfigError

_ONE_OF = ("worst", "best", "random")


@dataclass(frozen=True, kw_only=True)
class ShowConfig(CommandConfig):
    """`opdkit show`."""

    run: Path = argument("the run directory")
    turn_id: str | None = argument("a turn, shown whole (default: a list of the run's turns)", default=None)
    worst: int | None = option(None, "the N turns whose advantages add up to least", unit="turns", low=1)
    best: int | None = option(None, "the N turns whose advantages add up to most", unit="turns", low=1)
    random: int | None = option(None, "N turns drawn by --seed", unit="turns", low=1)
    seed: int = option(0, "seed of --random", low=0)
    grep: str | None = option(None, "only turns whose request, reply or hints match this regular expression")
    status: str | None = option(None, "only turns with this reward_status or hint_status (failed, leak, reviewed)")
    max_turns: int = option(50, "turns that are listed, unless --worst, --best or --random say how many", unit="turns",
                        low=1)  # fmt: skip
    whole: bool = option(False, "each of the turns whole; those of --worst, --best and --random are anyway")
    one_line: bool = option(False, "a line each, also with --worst, --best and --random")
    logprobs: bool = option(False, "of turns shown whole: also each token's log-probs under student and teacher")
    json: bool = option(False, "JSON on stdout: one turn's object with TURN_ID, else a list, of whole turns or of rows "
                        "as without it")  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [f"--{name}" for name in _ONE_OF if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{given[0]} and {given[1]} choose different turns; give one of them")
        chosen = given + [
            flag for flag, value in (("--grep", self.grep), ("--status", self.status)) if value is not None
        ]
        if self.turn_id is not None and chosen:
            raise ConfigError(f"{chosen[0]} chooses among all turns; leave out TURN_ID, or the option")
        if self.one_line and (self.whole or self.turn_id is not None):
            raise ConfigError(f"--one-line is a line a turn, {'--whole' if self.whole else 'TURN_ID'} shows it whole; "
                              "give one of them")  # fmt: skip
