"""`opdkit status`: which parts of which stage are done, read from the footers."""

from pathlib import Path

from rich.table import Table as RichTable

from opdkit.console import printable, stdout
from opdkit.errors import OpdkitError
from opdkit.stages import STAGES, home
from opdkit.store import part_count, summary_of
from opdkit.tables import TABLES


def run(directory: Path) -> None:
    """Print one row a stage. Raises OpdkitError when `directory` holds no run."""
    started = [stage for stage in STAGES if (home(directory, stage) / "manifest.json").exists()]
    if not started:
        raise OpdkitError(f"{directory} holds no run: start one with `opdkit extract {directory} LOGS...`")
    table = RichTable("stage", "parts", "in", "out", "dropped", "seconds")
    for stage in started:
        table.add_row(*_row(directory, stage))
    stdout.print(table)


def _row(directory: Path, stage: str) -> tuple[str, ...]:
    primary = next(table for table in TABLES.values() if table.stage == stage)  # the first of a stage says what is done
    found = summary_of(directory, stage, primary, part_count(directory, stage))
    total = found.counters
    dropped = ", ".join(f"{printable(reason)} {n:,}" for reason, n in total.dropped.most_common()) or "0"
    numbers = f"{total.rows_in:,}", f"{total.rows_out:,}", dropped, f"{total.seconds:.1f}"
    return (stage, f"{found.parts_done}/{found.parts}", *numbers)
