"""Two ways to the same result, timed turn about in one process, so that what else the machine does falls on both."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAIRS = 5


@dataclass(frozen=True)
class Comparison:
    """One line of a table: the usual way and ours on the same work.

    `seconds_usual[i]` and `seconds_ours[i]` are neighbours in time, so the ratio is taken pair by pair.
    """

    name: str  # what is done, for a reader
    usual: str  # how a user would do it today
    seconds_usual: Sequence[float]
    seconds_ours: Sequence[float]
    facts: dict[str, float | int | str] = field(default_factory=dict)  # sizes, differences, tokens read

    @property
    def ratios(self) -> list[float]:
        """How many times as fast ours is, a pair each, lowest first."""
        return sorted(u / o for u, o in zip(self.seconds_usual, self.seconds_ours, strict=True))

    def line(self) -> str:
        ratios, (usual, ours) = self.ratios, map(statistics.median, (self.seconds_usual, self.seconds_ours))
        facts = "".join(f"\n  {name}: {value}" for name, value in self.facts.items())
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} pairs"
        times = f"{statistics.median(ratios):.2f} times as fast ({spread}; medians {usual:.3g} s and {ours:.3g} s)"
        return f"{self.name}, against {self.usual}: {times}{facts}"


def turn_about(
    usual: Callable[[], object],
    ours: Callable[[], object],
    pairs: int = PAIRS,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[float], list[float]]:
    """Seconds of `usual` and of `ours`, `pairs` times each; which goes first alternates.

    `clock` is `time.process_time` where one process does all the work on a machine that is not idle.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    ways = (usual, ours)
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            start = clock()
            ways[which]()
            seconds[which].append(clock() - start)
    return seconds


def machine() -> dict[str, str]:
    """What the figures were taken on."""
    import torch

    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"cpu": cpu, "cores": str(os.cpu_count()), "gpu": gpu, "torch": torch.__version__}


def save(benchmark: str, comparisons: Sequence[Comparison], folder: Path = RESULTS) -> Path:
    """Write what docs/performance.md is made from: `results/BENCHMARK.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark}.json"
    found = {"machine": machine(), "comparisons": [asdict(c) for c in comparisons]}
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return path


def save_rows(benchmark: str, rows: Sequence[dict[str, Any]], folder: Path = RESULTS) -> Path:
    """As `save`, for what is no time: bytes, or differences."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark}.json"
    path.write_text(json.dumps({"machine": machine(), "rows": list(rows)}, indent=1) + "\n", encoding="utf-8")
    return path


def load(benchmark: str, folder: Path = RESULTS) -> list[Comparison]:
    """The comparisons that `save` wrote."""
    found = json.loads((folder / f"{benchmark}.json").read_text(encoding="utf-8"))
    return [Comparison(**c) for c in found["comparisons"]]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
