"""Run one stage: record its error, listen for signals."""

import contextlib
from typing import Any

from opdkit.config.command_line import quote
from opdkit.config.commands import COMMANDS, load_function
from opdkit.config.fields import CommandConfig, StageConfig
from opdkit.console import say
from opdkit.store.counters import Summary
from opdkit.store.failures import forget_failures, record_failure
from opdkit.store.stopping import listen_for_signals


def models_of(config: CommandConfig) -> list[str]:
    """Return the models that a command is told to load, by path or name; those behind a server are not among them."""
    options = vars(config)
    judge = options.get("judge_model") if options.get("judge") == "local" else None
    single = [judge, *(options.get(name) for name in ("model", "trained", "reference"))]
    return [str(model) for model in (*single, *options.get("teacher", ())) if model]


def announce_models(name: str, config: CommandConfig) -> None:
    """Say which models a command loads. Called before its module is imported: torch alone takes seconds."""
    models = models_of(config) or ([f"{vars(config)['run']}/train/model"] if name == "eval" else [])
    if models and name not in ("init", "run", "slurm"):  # these load none, or their stages do
        say(f"{name}: loading torch and {' and '.join(dict.fromkeys(models))} ...")


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
        summary.next = f"next: `opdkit eval {quote(config.run)} --prompts FILE` says whether it got better"
    if summary.parts_done == summary.parts:
        forget_failures(config.run, name)
    return summary
