"""Command line of the benchmark: measure what is missing, then write results, page and plots."""

import argparse
import os
from pathlib import Path

from ..pairs import machine, one_row_per_line
from . import WORLDS, benchmark

RESULTS = Path(__file__).parents[1] / "results" / "worlds.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.worlds", description=benchmark.__doc__)
    parser.add_argument("worlds", nargs="*", default=list(WORLDS), help="default: all")
    parser.add_argument("--work", type=Path, default=Path("runs/worlds"), help="worlds, runs, and finished cells")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="cells side by side, a core each")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    cells = benchmark.measure(options.work, options.workers, options.worlds)
    document = {"machine": machine(), "cells": cells}
    options.results.write_text(one_row_per_line(document), encoding="utf-8")


if __name__ == "__main__":
    main()
