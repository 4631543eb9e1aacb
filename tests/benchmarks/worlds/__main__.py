"""Command line of the benchmark: measure what is missing, then write results, page and plots."""

import argparse
import json
import os
from pathlib import Path

from ..pairs import machine, one_row_per_line
from . import WORLDS, benchmark, page

RESULTS = Path(__file__).parent / "results.json"
DOCS = Path(__file__).parents[3] / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.worlds", description=benchmark.__doc__)
    parser.add_argument("worlds", nargs="*", default=list(WORLDS), help="default: all")
    work = Path(f"runs/worlds-{benchmark.BUILD}")
    parser.add_argument("--work", type=Path, default=work, help="worlds, runs, and finished cells")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="cells side by side, a core each")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, default=DOCS, help="where learning.md and its plots go")
    parser.add_argument(
        "--draw", action="store_true", help="measure nothing: page and plots from the results there are"
    )
    parser.add_argument(
        "--forecasts",
        type=int,
        metavar="SEED",
        help="measure only the forecasts, in worlds of this seed, in place of those in the results",
    )
    parser.add_argument("--people", action="store_true", help="measure also edits, thumbs, and prompts from the log")
    parser.add_argument("--finished", action="store_true", help="measure nothing: results of the finished cells")
    options = parser.parse_args()
    if not options.draw:
        if options.forecasts is not None:
            cells = json.loads(options.results.read_text(encoding="utf-8"))["cells"]
            cells |= benchmark.measure_forecasts(options.work, options.workers, options.worlds, options.forecasts)
        elif options.finished:
            cells = benchmark.finished(options.work, options.worlds)
        else:
            cells = benchmark.measure(options.work, options.workers, options.worlds, options.people)
        document = {"machine": machine(), "cells": cells}
        options.results.write_text(one_row_per_line(document), encoding="utf-8")
    write(options.results, options.docs)


def write(results: Path, docs: Path) -> None:
    """Write the page and the plots that show the results."""
    from . import plots  # only the plots need matplotlib

    document = json.loads(results.read_text(encoding="utf-8"))
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "learning.md").write_text(page.page(document), encoding="utf-8")
    plots.draw(document, docs)


if __name__ == "__main__":
    main()
