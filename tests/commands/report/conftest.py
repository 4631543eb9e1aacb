"""Browser per file, and a finished run with its report."""

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
    """Three parts, all stages finished; the numbers from the teacher on are invented."""
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
    """Tabs that no test has open, by their options: to navigate one takes half the time of a new one."""
    idle: dict[Options, Watched] = {}
    yield idle
    for tab in idle.values():
        tab.close()


@pytest.fixture
def opened(browser: Any, tabs: dict[Options, Watched]) -> Iterator[Callable[..., Watched]]:
    """Opens pages; when the test is over, none of them may have done what it must not."""
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
    """The report, open for tests that only call its functions, each with arguments of its own."""
    watched = Watched(browser)
    yield watched.open(report)
    watched.close()
    assert watched.wrong == []
