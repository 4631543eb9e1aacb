"""Time two ways to the same result in alternation in one process, so that other work of the machine affects both."""

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
    """Line of a table: the usual way and opdkit's on the same work.

    `seconds_usual[i]` and `seconds_ours[i]` were measured one after the other, so ratios are taken pair by pair.
    """

    name: str  # what is done, for a reader
    usual: str  # how a user would do it today
    seconds_usual: Sequence[float]
    seconds_ours: Sequence[float]
    facts: dict[str, float | int | str] = field(default_factory=dict)  # sizes, differences, tokens read

    @property
    def ratios(self) -> list[float]:
        """Return how many times as fast opdkit is in each pair, lowest first."""
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
    """Return the seconds of `usual` and of `ours`, `pairs` times each; the order alternates.

    `clock` is `time.process_time` if one process does all the work on a machine that is not idle.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    ways = (usual, ours)
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            start = clock()
            ways[which]()
            seconds[which].append(clock() - start)
    return seconds


def clock_of(device: Any) -> Callable[[], float]:
    """Return a clock for work on a device: CPU seconds of this process, or the time at which a GPU is done."""
    if device.type != "cuda":
        return time.process_time

    def when_done() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    import torch

    return when_done


def machine() -> dict[str, str]:
    """Describe the machine on which the figures were measured."""
    import torch

    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"cpu": cpu, "cores": str(os.cpu_count()), "gpu": gpu, "torch": torch.__version__}


def save(
    benchmark: str, comparisons: Sequence[Comparison], folder: Path = RESULTS, rows: Sequence[dict[str, Any]] = ()
) -> Path:
    """Write the comparisons for docs/performance.md, and other rows, to `results/BENCHMARK.json`."""
    document = {"machine": machine(), "comparisons": [asdict(c) for c in comparisons]}
    return _write(benchmark, document | ({"rows": list(rows)} if rows else {}), folder)


def save_rows(benchmark: str, rows: Sequence[dict[str, Any]], folder: Path = RESULTS) -> Path:
    """Write rows that hold no pairs of times but, for example, bytes or differences."""
    return _write(benchmark, {"machine": machine(), "rows": list(rows)}, folder)


def _write(benchmark: str, document: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark}.json"
    path.write_text(one_row_per_line(document), encoding="utf-8")
    return path


def one_row_per_line(document: dict[str, Any]) -> str:
    """Return a document of rows as JSON in which each entry of its lists and objects has its own line.

    >>> print(one_row_per_line({"rows": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]}), end="")
    {
    "rows": [
    {"a": 1, "b": 2},
    {"a": 3, "b": 4}
    ]
    }
    """
    sections = []
    for name, entries in document.items():
        if isinstance(entries, dict):
            lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
            opening, closing = "{", "}"
        else:
            lines = [json.dumps(entry) for entry in entries]
            opening, closing = "[", "]"
        sections.append(f"{json.dumps(name)}: {opening}\n" + ",\n".join(lines) + f"\n{closing}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def load(benchmark: str, folder: Path = RESULTS) -> list[Comparison]:
    """Read the comparisons that `save` wrote."""
    found = json.loads((folder / f"{benchmark}.json").read_text(encoding="utf-8"))
    return [Comparison(**c) for c in found["comparisons"]]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
