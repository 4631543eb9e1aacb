"""Benchmark of the report, on a small run."""

from pathlib import Path

import pytest
from benchmarks.report import run
from browser import CHROMIUM


@pytest.mark.slow
def test_it_measures_every_figure(tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    pytest.importorskip("playwright")
    row = run(40, tmp_path, times=1)
    assert row["turns"] == 40
    assert 0 < row["mb"] < 1
    assert all(row[f"{name}_ms"] > 0 for name in ("open", "search", "filter", "sort"))
