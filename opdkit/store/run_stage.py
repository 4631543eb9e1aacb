"""Run one stage: record its error, listen for signals."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from opdkit.config.command_line import quote
from opdkit.config.commands import COMMANDS, load_function
from opdkit.config.fields import StageConfig
from opdkit.config.shard import read_rank
from opdkit.errors import OpdkitError
from opdkit.store.announce import announce_models
from opdkit.store.counters import Summary
from opdkit.store.failures import forget_failures, record_failure
from opdkit.store.plans import explain_upstream_change, find_command, has_stage, judge_kind, manifest, stage_dir
from opdkit.store.reading import is_complete, summary_of
from opdkit.store.reviews import find_outdated_targets, is_trained_before
from opdkit.store.stopping import listen_for_signals

_NEXT = {
    "judge": "--judge endpoint --judge-url URL --judge-model NAME` finds what the replies should have done "
    "(without a server: --judge local --judge-model PATH)",
    "teacher": "--model PATH` scores the judged replies with and without the hints",
    "train": "--model PATH --holdout 0.3` trains on the difference, and keeps three of ten sessions for `opdkit eval` "
    "(of a few thousand sessions, 0.1 is enough)",
    "eval": "--prompts FILE` says whether it got better",
}


def find_next_step(run: Path) -> str:
    """Return the next command for a run: that of the first stage that is unfinished, or older than what it was made of.

    Returns "" if there is none, and for a folder of a night, which only `opdkit night` continues. Raises OpdkitError
    for a damaged run.
    """
    if any(path.name == "nights" and (path.parent / "ledger.sqlite").exists() for path in run.resolve().parents[:2]):
        return ""
    has_jobs = (run / "slurm" / "submit.sh").exists()
    for stage in ("extract", *_NEXT):
        if has_jobs and stage != "eval" and not is_complete(run, stage):
            again = f"`opdkit slurm {quote(run)} ... --submit` again as before"
            return f"Next: its Slurm jobs do the rest; if none is in the queue (`squeue --me`), run {again}."
        if not has_stage(run, stage):
            break
        folder = quote(stage_dir(run, stage).parent)
        again = f"Next: run `opdkit {find_command(run, stage)} {folder} ...` again as before"
        if explain_upstream_change(run, stage) or (stage == "train" and is_trained_before(run)):
            return f"{again}, with --overwrite: what it was computed from has changed."
        if not is_complete(run, stage) or (stage == "teacher" and find_outdated_targets(run)):
            if stage == "judge" and judge_kind(run) == "batch":
                return f"{again}, with --in ANSWERS instead of --out, once its requests are answered."
            return f"{again}: it does what is left."
        if stage == "judge":
            counters = summary_of(run, stage).counters
            if 2 * counters.total("failed votes") > counters.total("votes"):
                return f"{again}, with --overwrite, and with another judge or other options: most of its votes failed."
    else:
        return ""
    if stage == "extract":
        return ""
    text = _NEXT[stage]
    if stage == "train":
        text = text.replace("PATH", quote(manifest(run, "teacher").get("configuration", {}).get("model", "PATH")))
    elif stage == "eval" and manifest(run, "train")["plan"]["config"]["holdout"]:
        text = text.replace("--prompts FILE", "--from-log")
    return f"Next: `opdkit {stage} {quote(run)} {text}."


def run_stage(name: str, config: StageConfig, *more: Any) -> Summary:
    """Run one stage by its name, until it is done or a signal stops it; `opdkit status` shows its error.

    `more` is passed to the stage's function. Call `config.check_inputs()` first: it is not called here, because
    `opdkit run` checks all of its stages before it runs the first.
    """
    if name == "eval" and config.shard == "auto":  # it has one part: the tasks of a Slurm array do not share it
        config = replace(config, shard="/".join(map(str, read_rank())))
    announce_models(name, config)
    record = contextlib.nullcontext() if config.is_dry_run else record_failure(name, config)
    with record, listen_for_signals():
        summary: Summary = load_function(COMMANDS[name].target)(config, *more)
    is_done = summary.parts_done == summary.parts
    if is_done and not config.is_dry_run:
        with contextlib.suppress(OpdkitError):  # a later stage is damaged
            summary.next = summary.next or find_next_step(config.run)
    if is_done:
        forget_failures(config.run, name)
    return summary
