"""`opdkit status`: the progress of each stage, from footers of parts, marks of running parts, and the last errors."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from opdkit.config.commands import STAGES
from opdkit.config.status import StatusConfig
from opdkit.console import counted, duration, make_plain_table, print_line, stdout
from opdkit.evaluate.conclusion import print_conclusion, read_conclusion
from opdkit.store.counters import Summary
from opdkit.store.failures import read_failures
from opdkit.store.plans import (
    explain_upstream_change,
    find_command,
    has_stage,
    list_trainings,
    no_run_error,
    stage_dir,
)
from opdkit.store.progress_marks import find_live_claims
from opdkit.store.reading import part_path, summary_of
from opdkit.store.reviews import TRAINED_BEFORE, find_outdated_targets, is_trained_before, read_reviews_in_force
from opdkit.store.run_stage import find_next_step
from opdkit.store.tables import PRIMARY

COLUMNS = ("stage", "parts", "running", "failed", "rows in/s", "time left")


def run(config: StatusConfig) -> None:
    """Print the conclusion of `opdkit eval`, one row per stage, and the last error of each shard.

    Raises OpdkitError if the directory holds no run.
    """
    directory, trainings = config.run, list_trainings(config.run).values()
    started = [(directory, stage) for stage in STAGES if has_stage(directory, stage)]
    started += [(run, stage) for run in trainings for stage in ("train", "eval") if has_stage(run, stage)]
    errors = [(run, error) for run in (directory, *trainings) for error in read_failures(run)]
    if not started and not errors:
        raise no_run_error(directory)
    failed = Counter((run, error["stage"]) for run, error in errors)
    table, lines = make_plain_table(), list[str]()
    for name in COLUMNS:
        table.add_column(name, no_wrap=name not in ("stage", "time left"), overflow="fold",
                         justify="right" if name == "rows in/s" else "left")  # fmt: skip
    for run, stage in started:
        summary, name = summary_of(run, stage), "" if run == directory else f" {run.stem}"
        table.add_row(stage + name, *_row(run, summary, failed[run, stage]))
        # Rollout may have written both stages: to extract, it takes hinted turns; its verdicts are on the replies.
        summary.stage = (find_command(run, stage) if stage == "extract" else stage) + name
        lines.append(summary.rows())
    if decided := read_reviews_in_force(directory):
        outdated = find_outdated_targets(directory)
        older = f"; parts of targets older than that: {len(outdated):,}, run `opdkit teacher` again"
        lines.append(f"turns reviewed by people: {len(decided):,}{older if outdated else ''}")
    for run, stage in started:
        if stage == "train" and is_trained_before(run):
            lines.append(f"{stage_dir(run, stage)}: {TRAINED_BEFORE}; run it again, with --overwrite")
        if change := explain_upstream_change(run, stage):
            lines.append(change)
    for _, error in errors:
        job = f", Slurm job {error['job']}" if error["job"] else ""
        place = f"{error['stage']} --shard {error['shard']} failed {error['time']} on {error['host']}{job}"
        lines.append(f"{place}: {error['error']}")
    if conclusion := read_conclusion(directory):
        print_conclusion(conclusion)
        stdout.print()
    for run in trainings:
        if conclusion := read_conclusion(run):
            print_line(f"{run.stem}: {conclusion.sentence}")
    stdout.print(table)
    for line in lines:
        print_line(line)
    is_running = any(find_live_claims(stage_dir(run, stage) / ".tmp") for run, stage in started)
    if not (is_running or trainings or errors) and (step := find_next_step(directory)):
        print_line(step)


def _row(directory: Path, summary: Summary, failed: int) -> Sequence[str]:
    stage = summary.stage
    under_way = {claim.part for claim in find_live_claims(stage_dir(directory, stage) / ".tmp")}
    running = sum(not part_path(directory, PRIMARY[stage].name, part).exists() for part in under_way)
    total = summary.counters
    shards = counted(failed, "shard") if failed else "0"
    rate = f"{total.rows_in / total.seconds:,.1f}" if total.seconds else "-"
    return (f"{summary.parts_done}/{summary.parts}", str(running), shards, rate, estimate_time_left(summary, running))


def estimate_time_left(summary: Summary, running: int) -> str:
    """Return the time left: the mean time per finished part times the parts left, over the running processes."""
    left = summary.parts - summary.parts_done
    if not left:
        return "done"
    if not summary.parts_done:
        return "?"
    seconds = left * summary.counters.seconds / summary.parts_done
    return duration(seconds / running) if running else f"{duration(seconds)} of work, none running"
