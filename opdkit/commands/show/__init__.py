"""`opdkit show`: the turns of a run in the terminal, as text in a pipe, or as JSON.

choose.py    which turns
listed.py    a line each
tokens.py    a reply's tokens in the colours, or between the marks, of their advantages
whole.py     one turn with everything
"""

import json
from collections.abc import Sequence

from opdkit.commands.show.choose import Chosen, ListedTurn, chosen_turns, picks, shows_whole
from opdkit.commands.show.listed import print_list
from opdkit.commands.show.whole import print_whole
from opdkit.commands.turn_view import turn_view, turn_views
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.config.show import ShowConfig
from opdkit.console import counted, say, stdout
from opdkit.errors import OpdkitError
from opdkit.store.plans import stage_dir


def run(config: ShowConfig) -> None:
    """Print one turn whole, or a list of turns.

    Raises OpdkitError when the directory holds no run or has no such turn, and ConfigError for a selection that none
    can satisfy.
    """
    whole = shows_whole(config)
    if not (stage_dir(config.run, "extract") / "manifest.json").exists():
        raise OpdkitError(f"{config.run} holds no run: start one with `opdkit extract {quote(config.run)} LOGS...`")
    if config.turn_id is not None:
        view = turn_view(config.run, config.turn_id)
        if config.json:
            _print_json(view)
        else:
            print_whole(view, stdout, logprobs=config.logprobs)
        return
    chosen = chosen_turns(config)
    if config.json:
        _print_json(_views(config, chosen.turns) if whole else [turn.to_json() for turn in chosen.turns])
    elif whole:
        for view in _views(config, chosen.turns):
            print_whole(view, stdout, logprobs=config.logprobs)
    elif chosen.turns:
        print_list(chosen.turns, stdout)
    if not chosen.turns:
        say(_nothing(config, chosen))
    elif len(chosen.turns) < chosen.total and not picks(config):
        one = "" if whole else f", `opdkit show {quote(config.run)} TURN_ID` one whole"
        say(f"{len(chosen.turns):,} of {counted(chosen.total, 'turn')}; --max-turns shows more{one}")


def _views(config: ShowConfig, turns: Sequence[ListedTurn]) -> list[JSON]:
    """In the order of `turns`."""
    by_id = {view["turn_id"]: view for view in turn_views(config.run, [turn.turn_id for turn in turns])}
    return [by_id[turn.turn_id] for turn in turns]


def _nothing(config: ShowConfig, chosen: Chosen) -> str:
    """Why no turn is shown, and what there is instead."""
    if not chosen.seen:
        return f"no turn is finished yet: `opdkit status {quote(config.run)}` says how far the run is"
    if chosen.total:  # only --worst and --best pass over turns that fit
        return (f"none of {chosen.total:,} turns has advantages: `opdkit teacher {quote(config.run)} --model PATH` "
                "computes those of turns with a hint")  # fmt: skip
    wanted = [f"the status {config.status}"] if config.status is not None else []
    wanted += [f"a text that --grep {config.grep!r} matches"] if config.grep is not None else []
    said = f"no turn has {' and '.join(wanted)}, of {chosen.seen:,}"
    if config.status is None:
        return said
    counts = {"reward_status": chosen.reward_statuses, "hint_status": chosen.hint_statuses}
    there = "; ".join(f"{name}: " + ", ".join(f"{status} {n:,}" for status, n in found.most_common())
                      for name, found in counts.items() if found)  # fmt: skip
    return f"{said}; " + (there or f"none is judged: `opdkit judge {quote(config.run)}`")


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False))
