"""One browser a file, and a finished run with its report."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Watched, chromium
from checked_runs import whole_run

from opdkit.report import page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parts, all stages finished; the numbers from the teacher on are invented."""
    return whole_run(tmp_path_factory.mktemp("report") / "run")


@pytest.fixture(scope="module")
def report(run: Path) -> Path:
    path = run / "report.html"
    path.write_text(page(run), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Watched]]:
    """Opens pages; when the test is over, none of them may have done what it must not."""
    pages: list[Watched] = []

    def opening(target: Path | str, **options: Any) -> Watched:
        pages.append(Watched(browser, **options))
        return pages[-1].open(target)

    yield opening
    for one in pages:
        one.close()
    assert [one.wrong for one in pages] == [[]] * len(pages)
