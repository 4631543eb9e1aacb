"""One browser a file, and a finished run with its report."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Watched, chromium
from checked_runs import recommit, whole_run

from opdkit.commands.report.page import page


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
