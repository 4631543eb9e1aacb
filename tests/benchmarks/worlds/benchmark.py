"""What the benchmark measures: which cells, in which order, and what is chosen from the first for the next.

Worlds are built first. Then all objectives train at all rates with a seed that nothing else uses: it is the search for
the best rate, and shows what a bad rate does. What is reported of a way takes its best value and other seeds.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.evaluate.checks import CORRECTED, UNCORRECTED
from opdkit.train.objective.terms import PRESETS

from .. import hints
from ..learning.cells import Cell, measured
from . import WORLDS, build, built_in
from .forecasts import forecast_cell
from .measure import hinted_accuracy, judged_right, prepared
from .trainings import before_cell, path_cell, training_cell
from .ways import REACTION, WAYS, prepare_reaction, prepare_trl, way_cell

DEFAULT = TrainConfig.objective
OBJECTIVES = tuple(PRESETS)
RATES = (1e-5, 3.2e-5, 1e-4, 3.2e-4, 1e-3, 3.2e-3, 1e-2)
SEARCH, SEEDS = 100, (0, 1, 2)  # seed of what is chosen by, and seeds of what is reported
PATH_RATES = (1e-3, 1e-2)
BUILD = 1  # seed of all worlds: those of seed 0 were looked at while the defaults were chosen
NOISY, NOISE = ("habit", "groups"), (0.1, 0.3, 0.5)  # worlds with irrelevant reactions, and the shares of these
SESSIONS, ERRORS = (12, 40, 200), 0.1  # of the logs that are forecast; of the judge of fresh replies
HINT_ERRORS, HINT_TOPICS = (0.0, 0.1, 0.2), ("weather", "cooking", "trains", "orders")


def measure(work: Path, workers: int, worlds: Sequence[str]) -> dict[str, JSON]:
    """Return the settings and numbers of every cell, by its name."""
    noisy = [f"{world}-{share:g}" for world in NOISY if world in worlds for share in NOISE]
    found: dict[str, JSON] = {}

    def run(cells: Iterable[Cell]) -> None:
        wanted = list(cells)
        numbers = measured(wanted, work, workers, {})
        found.update({cell.name: cell.settings | numbers[cell.name] for cell in wanted})

    run(world_cell(world) for world in worlds)
    run(world_cell(world) for world in noisy)
    run(first_cells(worlds, noisy))
    run(last_cells(worlds, noisy, found))
    return found


def first_cells(worlds: Sequence[str], noisy: Sequence[str]) -> list[Cell]:
    """Return the cells that wait for nothing but the worlds."""
    cells = [before_cell(world, seed) for world in worlds for seed in (SEARCH, *SEEDS)]
    cells += [training_cell(world, seed, DEFAULT, None) for world in (*worlds, *noisy) for seed in SEEDS]
    own = [world for world in worlds if not WORLDS[world].aside]
    cells += [training_cell(world, SEARCH, objective, rate) for world in own for objective in OBJECTIVES
              for rate in RATES]  # fmt: skip
    cells += [training_cell(world, SEARCH, DEFAULT, rate) for world in worlds if world not in own for rate in RATES]
    cells += [path_cell(world, SEARCH, objective, rate) for world in own for objective in OBJECTIVES
              for rate in PATH_RATES]  # fmt: skip
    cells += [way_cell(world, way, value, SEARCH) for world in worlds for way, values in WAYS.items()
              for value in values]  # fmt: skip
    cells += [way_cell(world, REACTION, value, SEARCH) for world in noisy for value in WAYS[REACTION]]
    cells += [forecast_cell(world, sessions, ERRORS, 0) for world in own for sessions in SESSIONS]
    cells += [hint_cell(errors, seed) for errors in HINT_ERRORS for seed in SEEDS[:2]]
    return cells


def last_cells(worlds: Sequence[str], noisy: Sequence[str], found: dict[str, JSON]) -> list[Cell]:
    """Return the cells of the values that are best in `found`."""
    cells = []
    for world in worlds:
        rate = best(RATES, [training_cell(world, SEARCH, DEFAULT, rate) for rate in RATES], found)
        cells += [training_cell(world, seed, DEFAULT, rate) for seed in SEEDS]
        for way, values in WAYS.items():
            value = best(values, [way_cell(world, way, value, SEARCH) for value in values], found)
            cells += [way_cell(world, way, value, seed) for seed in SEEDS]
    for world in noisy:
        rates = WAYS[REACTION]
        value = best(rates, [way_cell(world, REACTION, rate, SEARCH) for rate in rates], found)
        cells += [way_cell(world, REACTION, value, seed) for seed in SEEDS]
    return cells


def best(values: Sequence[float], cells: Sequence[Cell], found: dict[str, JSON]) -> float:
    """Return the value whose cell ended best: what is corrected and what is not count alike."""

    def end(cell: Cell) -> float:
        numbers = found[cell.name]
        return float(numbers[CORRECTED] + numbers[UNCORRECTED]) if numbers.get("model", True) else -1.0

    return max(zip(values, cells, strict=True), key=lambda pair: end(pair[1]))[0]


# -- cells ----------------------------------------------------------------------------------------------------------


def measure_world(work: Path, world: str) -> JSON:
    """Build a world, judge and score its log, and return how good hints and verdicts are."""
    name, _, share = world.partition("-")
    models_of = built_in(work, name) if share else None
    built = build(WORLDS[name], built_in(work, world).folder, irrelevant=float(share or 0), seed=BUILD,
                  models_of=models_of)  # fmt: skip
    run = prepared(built, built.folder / "run")
    prepare_reaction(built, run)
    if not share:
        prepare_trl(built, run)
    return judged_right(built, run) | {"with_hint": hinted_accuracy(built, run, SEARCH)[CORRECTED]}


def world_cell(world: str) -> Cell:
    return Cell(f"world-{world}", measure_world, {"world": world})


def measure_hints(work: Path, errors: float, seed: int) -> JSON:
    """Return recall and precision of `opdkit teacher --check-hints` where a fifth of the hints is bad."""
    found = hints.measure(errors, HINT_TOPICS, seed, samples=8)
    return {name: found[name] for name in ("hints", "planted", "dropped", "found", "recall", "precision")}


def hint_cell(errors: float, seed: int) -> Cell:
    return Cell(f"hints-{errors:g}-{seed}", measure_hints, {"errors": errors, "seed": seed})
