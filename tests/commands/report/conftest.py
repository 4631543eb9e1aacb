"""Fixtures: a browser per test file, and a finished run with its report."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Watched, chromium
from checked_runs import recommit, whole_run

from opdkit.commands.report.page import make_page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run of three parts; its numbers from the teacher stage on are invented."""
    made = whole_run(tmp_path_factory.mktemp("report") / "run")
    numbers = np.random.default_rng(1)

    def disagree(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["teacher_logprobs"] is not None:
                shift = numbers.normal(0, 1, len(row["old_logprobs"]))
                row["teacher_logprobs"] = np.minimum(np.add(row["old_logprobs"], shift), 0).tolist()

    for part in range(3):
        recommit(made, "targets", part, disagree)
    return made


@pytest.fixture(scope="module")
def report(run: Path) -> Path:
    path = run / "report.html"
    path.write_text(make_page(run), encoding="utf-8")
    return path


Options = tuple[tuple[str, Any], ...]


@pytest.fixture(scope="module")
def tabs() -> Iterator[dict[Options, Watched]]:
    """Yield the idle tabs by their options: reusing a tab takes half the time of opening a new one."""
    idle: dict[Options, Watched] = {}
    yield idle
    for tab in idle.values():
        tab.close()


@pytest.fixture
def opened(browser: Any, tabs: dict[Options, Watched]) -> Iterator[Callable[..., Watched]]:
    """Yield a function that opens pages. Fail at the end if a page had an error, a dialog or a forbidden request."""
    used: list[tuple[Options, Watched]] = []

    def opening(target: Path | str, **options: Any) -> Watched:
        key = tuple(sorted(options.items()))
        used.append((key, tabs.pop(key, None) or Watched(browser, **options)))
        return used[-1][1].open(target)

    yield opening
    for _, tab in used:
        tab.page.goto("about:blank")
    wrong = [tab.wrong for _, tab in used]
    if any(wrong):
        for _, tab in used:
            tab.close()
    else:
        tabs.update(used)
    assert wrong == [[]] * len(used)


@pytest.fixture(scope="module")
def calculating(report: Path, browser: Any) -> Iterator[Watched]:
    """Yield one open report, shared by tests that only call its functions, each with its own arguments."""
    watched = Watched(browser)
    yield watched.open(report)
    watched.close()
    assert watched.wrong == []
