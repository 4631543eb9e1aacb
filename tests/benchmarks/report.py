"""Report of a long run: its size, and the time to write, open, search, filter and sort it.

    python -m tests.benchmarks.report [--turns 10000]

The texts are random words, which compress worse than human text. Searching, filtering and sorting are timed in headless
Chromium, from the input to the new list on the screen, layout included.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

SEARCHES = ("e", "ing", "the", "zz", "a e", "log-1", "none of it at all")
TIMES = 5

# Milliseconds from an input to the painted list.
_TIMED = """async (action) => {
  const start = performance.now();
  const field = document.getElementById(action.field);
  field.value = action.value;
  refilter();
  document.body.getBoundingClientRect();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}"""


def measure(path: Path, times: int = TIMES) -> dict[str, float]:
    """Return in milliseconds the time until the page is complete, and the slowest median per kind of action."""
    from browser import Watched, chromium

    with chromium() as browser:
        watched = Watched(browser)
        start = time.perf_counter()
        watched.open(path)
        found = {"open": (time.perf_counter() - start) * 1000}
        found["search"] = max(_median(watched, "search", words, times) for words in SEARCHES)
        _median(watched, "search", "", 1)
        for name in ("reward", "hint", "source", "state"):
            field = f"filter-{name}"
            if watched.page.locator(f"#{field}").count():
                found["filter"] = max(found.get("filter", 0.0), _median(watched, field, "0", times))
                _median(watched, field, "", 1)
        orders = watched.page.evaluate("Object.keys(SORTS)")
        found["sort"] = max(_median(watched, "sort", order, times) for order in orders)
        if watched.wrong:
            raise SystemExit(f"the page did what it must not: {watched.wrong[:3]}")
        watched.close()
    return found


def _median(watched: Any, field: str, value: str, times: int) -> float:
    action = {"field": field, "value": value}
    return median(watched.page.evaluate(_TIMED, action) for _ in range(times))


def run(turns: int, folder: Path, times: int = TIMES) -> dict[str, float]:
    """Return one row of results for a run of `turns` turns."""
    from report_runs import large_run

    from opdkit.commands.report.command import run as report
    from opdkit.config.report import ReportConfig

    run_folder = large_run(folder / "run", turns)
    start = time.perf_counter()
    written = report(ReportConfig(run=run_folder))
    seconds = time.perf_counter() - start
    return {"turns": turns, "mb": written.size / 1e6, "write_seconds": seconds} | {
        f"{name}_ms": value for name, value in measure(written.path, times).items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10_000)
    options = parser.parse_args(arguments)
    from benchmarks.pairs import save_rows

    with tempfile.TemporaryDirectory() as folder:
        row = run(options.turns, Path(folder))
    for name, value in row.items():
        print(f"{name:<14} {value:,.2f}")
    save_rows("report", [row])
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # tests import each other by their plain names
    sys.exit(main())
