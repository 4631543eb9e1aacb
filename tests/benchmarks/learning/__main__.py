"""Command line of the benchmark: measure what is missing, then write results, page and plots."""

import argparse
import os
from pathlib import Path

from opdkit.config.fields import JSON

from . import ablations, document, experiments
from .cells import measured
from .results import read_results, write_results
from .runs import SCORED_OTHERWISE, judged, scored_otherwise

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
DOCS = HERE.parents[2] / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.learning", description=document.__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/learning"), help="where the trainings happen")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="trainings side by side, a core each")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, default=DOCS, help="where sample-world.md and its plots go")
    parser.add_argument(
        "--draw", action="store_true", help="measure nothing: page and plots from the results there are"
    )
    parser.add_argument("--add", action="store_true", help="measure only what the results do not have")
    options = parser.parse_args()
    if not options.draw:
        known = read_results(options.results) if options.add else {"rates": {}, "cells": {}}
        write_results(options.results, measure(options.work, options.workers, options.seeds, known))
    write(options.results, options.docs)


def measure(work: Path, workers: int, seeds: int, known: JSON) -> JSON:
    """Measure everything but the cells of `known` results.

    The learning rates and the recipe are chosen first, with tuning seeds, which only the second look uses again.
    """
    log = experiments.described(judged(work))
    for name in SCORED_OTHERWISE:
        scored_otherwise(work, name)
    rate_cells = experiments.rate_cells() + ablations.rate_cells()
    rates = measured(rate_cells, work, workers, known["rates"])
    tuned = experiments.tuned(rates) | ablations.tuned(rates)
    cells = experiments.cells(tuned, range(seeds)) + ablations.cells(rates, tuned, range(seeds))
    return {"log": log, "rates": rates, "tuned": tuned, "cells": measured(cells, work, workers, known["cells"])}


def write(results: Path, docs: Path) -> None:
    """Write the page and the plots that show the results."""
    from . import plots  # only the plots need matplotlib

    found = read_results(results)
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "sample-world.md").write_text(document.page(found), encoding="utf-8")
    plots.draw(found, docs)


if __name__ == "__main__":
    main()
