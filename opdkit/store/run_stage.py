"""Run one stage: record its error, listen for signals."""

import contextlib
from typing import Any

from opdkit.config.command_line import quote
from opdkit.config.commands import COMMANDS, load_function
from opdkit.config.fields import StageConfig
from opdkit.store.announce import announce_models
from opdkit.store.counters import Summary
from opdkit.store.failures import forget_failures, record_failure
from opdkit.store.stopping import listen_for_signals


def run_stage(name: str, config: StageConfig, *more: Any) -> Summary:
    """Run one stage by its name, until it is done or a signal stops it; `opdkit status` shows its error.

    `more` goes to its function. Call `config.check_inputs()` before: `opdkit run` checks all of its stages before it
    runs the first.
    """
    announce_models(name, config)
    record = contextlib.nullcontext() if config.is_dry_run else record_failure(name, config)
    with record, listen_for_signals():
        summary: Summary = load_function(COMMANDS[name].target)(config, *more)
    if name == "train" and not config.is_dry_run:
        prompts = "--from-log" if vars(config)["holdout"] else "--prompts FILE"
        summary.next = f"next: `opdkit eval {quote(config.run)} {prompts}` says whether it got better"
    if summary.parts_done == summary.parts:
        forget_failures(config.run, name)
    return summary
