"""Access to the results, for the page, its plots and the tests."""

from collections.abc import Sequence
from dataclasses import dataclass

from opdkit.config.fields import JSON

from .experiments import LONG, mean, mean_corrected, slug

NOISE = (0.0, 1)  # error rate and votes of the judge that is never wrong


@dataclass(frozen=True)
class Results:
    """Content of the results file."""

    numbers: JSON

    @property
    def cells(self) -> JSON:
        found: JSON = self.numbers["cells"]
        return found

    @property
    def log(self) -> JSON:
        found: JSON = self.numbers["log"]
        return found

    def base(self) -> float:
        """Return the share of right first replies in the corrected topics before any training."""
        return mean(mean_corrected(seed["passed"]) for seed in seeds_of(self, "base"))

    def noise(self, wrong: float, votes: int, what: str) -> float:
        """Return the mean over the seeds of rewards_right, hints_right, or passed."""
        seeds = seeds_of(self, f"noise-{wrong:g}-{votes}")
        return mean(mean_corrected(s["passed"]) if what == "passed" else s[what] for s in seeds)


def seeds_of(found: Results, kind: str, name: str = "") -> list[JSON]:
    """Return the cells of one kind (long, short, base, rounds, noise-RATE-VOTES) and name, one per seed."""
    stem = f"{kind}-{slug(name)}" if name else kind
    cells, seed = [], 0
    while f"{stem}-{seed}" in found.cells:
        cells.append(found.cells[f"{stem}-{seed}"])
        seed += 1
    return cells


def band(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lowest value, the mean, and the highest value."""
    return min(values), mean(values), max(values)


def curve(found: Results, name: str) -> list[float]:
    """Return the accuracy in the corrected topics after each epoch of a long training, as means over the seeds."""
    return [mean(mean_corrected(s["epochs"][e]) for s in seeds_of(found, "long", name)) for e in range(LONG)]


def after_short(
    found: Results, name: str, metric: str, domain: str, column: str = "after", kind: str = "short"
) -> float:
    """Return a score of `opdkit eval` after a short training, as a mean over the seeds."""
    return mean(score(seed["scores"], metric, domain, column) for seed in seeds_of(found, kind, name))


def gain(found: Results, name: str) -> float:
    """Return by how much a short training raises the share of right replies in the corrected topics."""
    return after_short(found, name, "passed_sampled", "corrected", "difference")


def score(scores: Sequence[JSON], metric: str, domain: str, column: str = "after") -> float:
    return float(next(r[column] for r in scores if (r["metric"], r["domain"]) == (metric, domain)))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
