"""`opdkit show`: print one turn whole, or a list of turns."""

import json

from opdkit.commands.show.choose import Chosen, choose_turns
from opdkit.commands.show.one_turn import print_whole
from opdkit.commands.show.turn_list import make_json_row, print_list
from opdkit.commands.turns.view import read_turn_views
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.config.show import ShowConfig
from opdkit.console import counted, say, stdout, warn
from opdkit.errors import ConfigError
from opdkit.store.plans import explain_upstream_change, has_stage, no_run_error, stage_dir


def run(config: ShowConfig) -> None:
    """Print the turns.

    Raises OpdkitError if the directory holds no run or has no such turn, and ConfigError for options that contradict
    each other or a pattern that is not a regular expression.
    """
    is_ranked = any(number is not None for number in (config.worst, config.best, config.random))
    whole = config.turn_id is not None or config.whole or (is_ranked and not config.one_line)
    if config.logprobs and not whole:
        remedy = "leave out --one-line" if config.one_line else "add --whole, or name a turn"
        raise ConfigError(f"--logprobs is for turns shown whole, and these would be rows: {remedy}")
    chosen, documents = choose_views(config, whole)
    for stage in ("judge", "teacher"):
        if has_stage(config.run, stage) and (change := explain_upstream_change(config.run, stage)):
            warn(change)
    if config.json:
        document = documents if config.turn_id is None else documents[0]
        print(json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False))
    elif whole:
        for view in documents:
            print_whole(view, stdout, logprobs=config.logprobs)
    elif chosen.lines:
        print_list(chosen.lines, stdout)
    if config.turn_id is not None:
        return
    if not chosen.lines:
        say(_explain_nothing(config, chosen))
    elif len(chosen.lines) < chosen.passed and not is_ranked:
        hint = "" if whole else f", `opdkit show {quote(config.run)} TURN_ID` one whole"
        say(f"{len(chosen.lines):,} of {counted(chosen.passed, 'turn')}; --max-turns shows more{hint}")


def choose_views(config: ShowConfig, whole: bool = True) -> tuple[Chosen, list[JSON]]:
    """Return the turns to show, in the order in which they were chosen, whole or as rows of a list. Raises as `run`."""
    if not has_stage(config.run, "extract"):
        raise no_run_error(config.run)
    chosen = Chosen() if config.turn_id is not None else choose_turns(config)
    if not whole:
        return chosen, [make_json_row(line) for line in chosen.lines]
    names = [line.turn_id for line in chosen.lines] if config.turn_id is None else [config.turn_id]
    views = {view["turn_id"]: view for view in read_turn_views(config.run, names)}
    return chosen, [views[name] for name in names]


def _explain_nothing(config: ShowConfig, chosen: Chosen) -> str:
    """Return why no turn is shown, and what there is instead."""
    run = quote(stage_dir(config.run, "judge").parent)  # of a named training, the run
    if not chosen.seen:
        return f"no turn is finished yet: `opdkit status {quote(config.run)}` shows the progress of the run"
    if chosen.passed:  # only --worst and --best leave out turns that pass the filters
        return (f"none of {chosen.passed:,} turns has advantages: `opdkit teacher {run} --model PATH` "
                "computes those of turns with a hint")  # fmt: skip
    conditions = [f"the status {config.status}"] if config.status is not None else []
    conditions += [f"a text that --grep {config.grep!r} matches"] if config.grep is not None else []
    message = f"no turn has {' and '.join(conditions)}, of {chosen.seen:,}"
    if config.status is None:
        return message
    statuses = "; ".join(f"{name}: " + ", ".join(f"{status} {n:,}" for status, n in counter.most_common())
                         for name, counter in chosen.statuses.items() if counter)  # fmt: skip
    return f"{message}; " + (statuses or f"none is judged: `opdkit judge {run} ...` does it")
