"""Cells: measurements, made one after the other or side by side, each stored as soon as it is done."""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import JSON


@dataclass(frozen=True)
class Cell:
    """Measurement: `measure(work, **settings)` returns its numbers."""

    name: str  # unique, and usable as a file name
    measure: Callable[..., JSON]
    settings: JSON

    def record(self, work: Path) -> Path:
        return work / "cells" / f"{self.name}.json"


def measured(cells: Sequence[Cell], work: Path, workers: int, known: dict[str, JSON]) -> dict[str, JSON]:
    """Return the numbers of every cell by its name.

    Cells of `known` are taken from there. Cells that the work folder has for the same settings are reused.
    """
    missing = [cell for cell in cells if cell.name not in known and recorded(cell, work) is None]
    # One process per worker, one thread per process: threads that wait for each other on a busy core cost far more.
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(_measure, cell, work): cell for cell in missing}
        for count, future in enumerate(as_completed(futures), start=1):
            if future.exception():
                pool.shutdown(wait=False, cancel_futures=True)
            future.result()
            print(f"{count} of {len(missing)}: {futures[future].name}", file=sys.stderr, flush=True)
    found = {cell.name: known.get(cell.name) or recorded(cell, work) for cell in cells}
    return {name: numbers for name, numbers in found.items() if numbers is not None}


def recorded(cell: Cell, work: Path) -> JSON | None:
    """Return the numbers that the work folder has for a cell with the same settings; None: it was not measured."""
    try:
        record = json.loads(cell.record(work).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return record["numbers"] if record["settings"] == json.loads(json.dumps(cell.settings)) else None


def _measure(cell: Cell, work: Path) -> None:
    (work / "logs").mkdir(parents=True, exist_ok=True)
    with (work / "logs" / f"{cell.name}.txt").open("w") as log:
        sys.stderr = log  # messages of the stages
        try:
            numbers = cell.measure(work, **cell.settings)
        finally:
            sys.stderr = sys.__stderr__
    write_record(cell, numbers, work)


def write_record(cell: Cell, numbers: JSON, work: Path) -> None:
    """Store the numbers of a cell in the work folder."""
    path = cell.record(work)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"settings": cell.settings, "numbers": numbers}), encoding="utf-8")
    temporary.replace(path)
