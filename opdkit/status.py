"""`opdkit status`: which parts of which stage are done, read from the footers."""

from pathlib import Path

from rich.table import Table as RichTable

from opdkit.console import printable, stdout
from opdkit.errors import OpdkitError
from opdkit.stages import STAGES, home
from opdkit.store import Counters, manifest, part_path, read_counters

_PRIMARY = {"extract": "sessions", "judge": "verdicts", "teacher": "targets", "train": "metrics", "eval": "replies"}


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
    parts = manifest(directory, stage)["plan"]["parts"]
    done = [path for k in range(parts) if (path := part_path(directory, _PRIMARY[stage], k)).exists()]
    total = Counters()
    for path in done:
        total.merge(read_counters(path))
    dropped = ", ".join(f"{printable(reason)} {n:,}" for reason, n in total.dropped.most_common()) or "0"
    return (stage, f"{len(done)}/{parts}", f"{total.rows_in:,}", f"{total.rows_out:,}", dropped, f"{total.seconds:.1f}")
