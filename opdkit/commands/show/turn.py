"""Turns for a notebook: `run.show(TURN_ID)`, `run.turns(worst=3)`; each is shown as the command prints it."""

import io
from typing import Any

from rich.console import Console

from opdkit.commands.show.command import choose_views
from opdkit.commands.show.one_turn import print_whole
from opdkit.config.show import ShowConfig

_HTML = '<pre style="white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.5">{code}</pre>'


class Turn(dict[str, Any]):
    """Turn with all that the run knows: the object of `opdkit show --json`; its repr is what `opdkit show` prints.

    A notebook shows its tokens in the colours of their advantages.
    """

    def __repr__(self) -> str:
        return _print(self).export_text().rstrip()

    def _repr_html_(self) -> str:
        console = _print(self, force_terminal=True, color_system="truecolor")
        return console.export_html(code_format=_HTML, inline_styles=True)


class Turns(list[Turn]):
    """List of turns; a notebook shows them one below the other."""

    def _repr_html_(self) -> str:
        return "<hr>".join(turn._repr_html_() for turn in self) or "no turns"


def load_turns(config: ShowConfig) -> Turns:
    """Return the turn that the options name, or the turns that they choose. Raises what `opdkit show` raises."""
    return Turns(map(Turn, choose_views(config)[1]))


def _print(turn: Turn, **options: Any) -> Console:
    console = Console(file=io.StringIO(), record=True, width=100, force_jupyter=False, no_color=False, **options)
    print_whole(turn, console, logprobs=False)
    return console
