"""The benchmark of the report measures what it says, on a run that is small."""

from pathlib import Path

from benchmarks.report import run
from browser import chromium


def test_it_measures_every_figure(tmp_path: Path) -> None:
    with chromium():  # skipped where there is none
        pass
    row = run(40, tmp_path)
    assert row["turns"] == 40
    assert 0 < row["mb"] < 1
    assert all(row[f"{name}_ms"] > 0 for name in ("open", "search", "filter", "sort"))
