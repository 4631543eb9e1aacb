"""Tests with 10,000 turns or more: the file stays small, and search and filters find every turn."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from browser import Watched
from report_runs import large_run

from opdkit.commands.report.command import run as report
from opdkit.commands.review.api import Api
from opdkit.commands.review.server import ReviewServer
from opdkit.config.report import ReportConfig
from opdkit.store.reading import read_all
from opdkit.store.reviews import read_reviews_in_force


@pytest.mark.slow
def test_every_turn_of_a_long_run_can_be_reviewed(tmp_path: Path, opened: Callable[..., Watched]) -> None:
    """12,000 turns are listed page by page. A turn that the report would leave out can be found, opened and decided."""
    run = large_run(tmp_path / "run", 12_000, tokens=4)
    server = ReviewServer(Api(run, "Ada"))
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    try:
        watched = opened(server.address)
        assert watched.text("#found").startswith("12,000 of 12,000 turns")
        assert watched.text("#pages").endswith("page 1 of 240\nLater")
        last = list(read_all(run, "turns"))[-1]["turn_id"]
        watched.page.fill("#search", last)
        watched.page.wait_for_selector("#list mark")
        assert watched.page.evaluate("list.shown.map((turn) => turn.id)") == [last]
        watched.page.locator("#list button").click()
        watched.page.wait_for_selector("#panel")
        watched.page.keyboard.press("X")
        watched.page.evaluate("async () => { while (unsent.size) await new Promise((r) => setTimeout(r, 10)); }")
        assert read_reviews_in_force(run)[last].chosen is None
    finally:
        watched.page.goto("about:blank")
        server.shutdown()
        serving.join()
        server.server_close()


@pytest.mark.slow
def test_ten_thousand_turns(tmp_path: Path, opened: Callable[..., Watched]) -> None:
    """The report has at most 3 MB, lists every turn, finds turns by id and by verdict, and shows 200 turns whole."""
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
