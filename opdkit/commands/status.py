"""`opdkit status`: how far each stage is, from the footers, the marks of parts under way, and the last errors."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table as RichTable

from opdkit.config.command_line import quote
from opdkit.config.commands import STAGES
from opdkit.config.fields import JSON
from opdkit.config.status import StatusConfig
from opdkit.console import counted, printable, stdout
from opdkit.errors import OpdkitError
from opdkit.store import Summary, find_outdated_upstream, part_count, part_path, summary_of
from opdkit.store.failures import read_failures
from opdkit.store.marks import live_claims
from opdkit.store.plans import stage_dir
from opdkit.store.reviews import Reviews, outdated_targets, reviews_in_force
from opdkit.store.tables import TABLES

COLUMNS = ("stage", "parts", "running", "failed", "in", "out", "dropped", "rows/s", "time left")


def run(config: StatusConfig) -> None:
    """Print one row a stage, then the last error of each shard. Raises OpdkitError when it holds no run."""
    directory = config.run
    started = [stage for stage in STAGES if (stage_dir(directory, stage) / "manifest.json").exists()]
    errors = read_failures(directory)
    if not started and not errors:
        raise OpdkitError(f"{directory} holds no run: start one with `opdkit extract {quote(directory)} LOGS...`")
    failed = Counter(error["stage"] for error in errors)
    table = RichTable(*COLUMNS)
    for stage in started:
        table.add_row(*_row(directory, stage, failed[stage]))
    stdout.print(table)
    if decided := reviews_in_force(directory):
        stdout.print(_reviewed(directory, decided), markup=False, soft_wrap=True)
    for stage in started:
        if before := _outdated(directory, stage):
            stdout.print(f"{stage}: computed from another {before} stage than is there now; do it again, with "
                         "--overwrite", markup=False, soft_wrap=True)  # fmt: skip
    for error in errors:
        stdout.print(_last_error(error), markup=False, soft_wrap=True)


def _row(directory: Path, stage: str, failed: int) -> Sequence[str]:
    primary = next(table for table in TABLES.values() if table.stage == stage)  # the first of a stage says what is done
    found = summary_of(directory, stage, primary, part_count(directory, stage))
    under_way = {claim.part for claim in live_claims(stage_dir(directory, stage) / ".tmp")}
    running = sum(not part_path(directory, primary.name, part).exists() for part in under_way)
    total = found.counters
    dropped = ", ".join(f"{printable(reason)} {n:,}" for reason, n in total.dropped.most_common()) or "0"
    shards = counted(failed, "shard") if failed else "0"
    rate = f"{total.rows_in / total.seconds:,.1f}" if total.seconds else "-"
    rows = f"{total.rows_in:,}", f"{total.rows_out:,}", dropped, rate
    return (stage, f"{found.parts_done}/{found.parts}", str(running), shards, *rows, time_left(found, running))


def _outdated(directory: Path, stage: str) -> str | None:
    try:
        return find_outdated_upstream(directory, stage)
    except OpdkitError:  # one of them is gone: `opdkit check` says what to do
        return None


def _reviewed(directory: Path, decided: Reviews) -> str:
    """What people have decided, and whether the targets show it yet."""
    text = f"turns decided by people: {len(decided):,}"
    old = outdated_targets(directory, decided)
    return text + (f"; parts of targets older than that: {len(old):,}, run `opdkit teacher` again" if old else "")


def time_left(found: Summary, running: int) -> str:
    """How long the parts that are not done will take, at the mean of those that are, by as many processes as now."""
    left = found.parts - found.parts_done
    if not left:
        return "done"
    if not found.parts_done:
        return "?"
    seconds = left * found.counters.seconds / found.parts_done
    return f"{duration(seconds / running)}" if running else f"{duration(seconds)} of work, none running"


def duration(seconds: float) -> str:
    """12.3 -> "12 s", 7260 -> "2 h 1 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _last_error(error: JSON) -> str:
    job = f", Slurm job {error['job']}" if error["job"] else ""
    return f"{error['stage']} --shard {error['shard']} failed {error['time']} on {error['host']}{job}: " + printable(
        error["error"]
    )
