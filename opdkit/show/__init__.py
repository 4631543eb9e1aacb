"""`opdkit show`: the turns of a run in the terminal, as text in a pipe, or as JSON.

choose.py    which turns
listed.py    a line each
tokens.py    a reply's tokens in the colours, or between the marks, of their advantages
whole.py     one turn with everything
"""

import json

from opdkit.commands.show import ShowConfig
from opdkit.console import say, stdout
from opdkit.errors import OpdkitError
from opdkit.nouns import counted
from opdkit.show.choose import chosen_turns
from opdkit.show.listed import print_list
from opdkit.show.whole import print_whole
from opdkit.stages import home
from opdkit.turn_view import turn_view, turn_views


def run(config: ShowConfig) -> None:
    """Print one turn whole, or a list of turns.

    Raises OpdkitError when the directory holds no run or has no such turn, and ConfigError for a selection that none
    can satisfy.
    """
    if not (home(config.run, "extract") / "manifest.json").exists():
        raise OpdkitError(f"{config.run} holds no run: start one with `opdkit extract {config.run} LOGS...`")
    if config.turn_id is not None:
        view = turn_view(config.run, config.turn_id)
        if config.json:
            _print_json(view)
        else:
            print_whole(view, stdout, logprobs=config.logprobs)
        return
    turns, total = chosen_turns(config)
    if config.whole:
        by_id = {view["turn_id"]: view for view in turn_views(config.run, [turn.turn_id for turn in turns])}
        views = [by_id[turn.turn_id] for turn in turns]
        if config.json:
            _print_json(views)
        else:
            for view in views:
                print_whole(view, stdout, logprobs=config.logprobs)
    elif config.json:
        _print_json([turn.to_json() for turn in turns])
    else:
        print_list(turns, stdout)
    if len(turns) < total:
        say(
            f"{len(turns):,} of {counted(total, 'turn')}; --limit shows more, "
            f"`opdkit show {config.run} TURN_ID` one whole"
        )


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False))
