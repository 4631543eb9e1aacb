"""10,000 turns: the file stays small, and search and filters find what is there."""

from collections.abc import Callable
from pathlib import Path

import pytest
from browser import Watched
from report_runs import large_run

from opdkit.commands.report.command import run as report
from opdkit.config.report import ReportConfig
from opdkit.store.reading import read_all


@pytest.mark.slow
def test_ten_thousand_turns(tmp_path: Path, opened: Callable[..., Watched]) -> None:
    """At most 3 MB; every turn is listed, found by its id and by its verdict; 200 are shown whole."""
    run = large_run(tmp_path / "run", 10_000)
    written = report(ReportConfig(run=run))
    assert written.path == run / "report.html"
    assert written.size == written.path.stat().st_size <= 3_000_000
    watched = opened(written.path)
    assert watched.text("#found").startswith("10,000 of 10,000 turns")
    assert watched.page.evaluate("data.views.length") == 200
    watched.page.fill("#search", "log-2:2402:5")
    watched.page.wait_for_selector("#list mark")
    assert watched.page.evaluate("list.shown.map((turn) => turn.id)") == ["log-2:2402:5"]
    watched.page.fill("#search", "")
    watched.page.evaluate("refilter()")
    hinted = sum(v["hint"] is not None for v in read_all(run, "verdicts"))
    watched.page.select_option("#filter-hint", label=f"ok: has a hint ({hinted:,})")
    assert watched.text("#found").startswith(f"{hinted:,} of 10,000 turns")
