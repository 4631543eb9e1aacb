"""What the benchmark measures: which cells, and in which order.

Worlds are built first. Then all objectives are trained at all rates, and all ways with all their values, with a seed
for the search alone. For each way the best value is reported, with the numbers by which it was chosen. opdkit's
default, for which nothing is chosen, has other seeds, and so has the best rate that it is compared with.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.evaluate.checks import CORRECTED, UNCORRECTED
from opdkit.model.load import load_model
from opdkit.train.objective.terms import PRESETS
from opdkit.train.trust_region import make_trust_region

from .. import hints
from ..learning.cells import Cell, measured, recorded, write_record
from . import WORLDS, build, built_in
from .decisions import DECIDED, LOGS, decided_cell
from .forecasts import forecast_cell
from .measure import hinted_accuracy, judged_right, prepared
from .mined import mined_cell
from .trainings import again, before_cell, before_of, measure_training, path_cell, training_cell
from .ways import REACTION, WAYS, prepare_reaction, prepare_trl, way_cell

DEFAULT = TrainConfig.objective
OBJECTIVES = tuple(PRESETS)
RATES = (1e-5, 3.2e-5, 1e-4, 3.2e-4, 1e-3, 3.2e-3, 1e-2)
SEARCH, SEEDS = 100, (0, 1, 2)  # seed of the search, and seeds of the default
PATH_OBJECTIVES, PATH_RATES = (DEFAULT, "opd", "topk", "binary"), (1e-3, 1e-2)
BUILD = 24  # seed of all worlds: worlds of lower seeds were looked at while defaults and rules were chosen
SEEMS_WORSE = 0.005  # a model that loses more of either share is measured again, with more replies
NOISY, NOISE = ("habit", "groups"), (0.1, 0.3, 0.5)  # worlds that also get irrelevant reactions, and their shares
SESSIONS, ERRORS = (12, 40, 200), 0.1  # sizes of the forecast logs; error rate of the judge of fresh replies
TAUGHT, TAUGHT_SESSIONS = 1e-4, (12, 40)  # rate of a training before the forecast, and sizes of its logs
HINT_ERRORS, HINT_TOPICS = (0.0, 0.1, 0.2), ("weather", "cooking", "trains", "orders")


def measure(work: Path, workers: int, worlds: Sequence[str], people: bool) -> dict[str, JSON]:
    """Measure what is missing (`people`: also the cells of `decided`). Return settings and numbers of each cell."""
    noisy = noisy_worlds(worlds)
    run = partial(measured, work=work, workers=workers, known={})
    run([world_cell(world) for world in worlds])
    run([world_cell(world) for world in noisy])
    own = trainings(worlds, noisy)
    run([cell for cell in own if cell.settings.get("rate") != RATES[-1] or cell.measure is not measure_training])
    copy_same_trainings(work, own)
    run(own)
    for _ in range(2):  # the second round measures what follows from the cells of the first
        last = last_cells(worlds, noisy, finished(work, worlds))
        copy_same_trainings(work, last)
        run(last)
    run([*forecasts_and_hints(worlds), *way_cells(worlds, noisy)])
    if people:
        run(decided(worlds))
    return finished(work, worlds)


def measure_forecasts(work: Path, workers: int, worlds: Sequence[str], build: int) -> dict[str, JSON]:
    """Measure the missing forecasts, in worlds built with seed `build`. Return the same as `measure`."""
    run, cells = partial(measured, work=work, workers=workers, known={}), forecast_cells(worlds)
    run([world_cell(world, build) for world in worlds if not WORLDS[world].aside])
    numbers = run(cells)
    return {cell.name: cell.settings | numbers[cell.name] | {"build": build} for cell in cells}


def finished(work: Path, worlds: Sequence[str]) -> dict[str, JSON]:
    """Return the settings and numbers of the cells that are measured, by name."""
    noisy, found = noisy_worlds(worlds), dict[str, JSON]()

    def add(cells: Sequence[Cell]) -> None:
        numbers = ((cell, recorded(cell, work)) for cell in cells)
        found.update({cell.name: cell.settings | each for cell, each in numbers if each is not None})

    add([world_cell(world) for world in (*worlds, *noisy)])
    add(first_cells(worlds, noisy))
    add(last_cells(worlds, noisy, found))
    add(last_cells(worlds, noisy, found))
    return found


def noisy_worlds(worlds: Sequence[str]) -> list[str]:
    """Return the names of the worlds with irrelevant reactions."""
    return [f"{world}-{share:g}" for world in NOISY if world in worlds for share in NOISE]


def trainings(worlds: Sequence[str], noisy: Sequence[str]) -> list[Cell]:
    """Return the cells of opdkit's own trainings."""
    searched = [world for world in worlds if WORLDS[world].searched]
    cells = [before_cell(world, seed) for world in worlds for seed in (SEARCH, *SEEDS)]
    cells += [training_cell(world, seed, DEFAULT, None) for world in (*worlds, *noisy) for seed in SEEDS]
    cells += [cell for world in worlds for cell in searched_cells(world)]
    cells += [training_cell(world, SEARCH, objective, rate) for world in searched for objective in OBJECTIVES
              for rate in RATES if objective != DEFAULT]  # fmt: skip
    return cells + path_cells(searched)


def copy_same_trainings(work: Path, cells: Sequence[Cell]) -> None:
    """Record equal trainings instead of measuring the two highest rates, if opdkit's own largest rate is lower.

    Trainings at both rates then have opdkit's largest rate, and so does a training without a rate.
    """
    for cell in cells:
        settings = cell.settings
        if cell.measure is not measure_training or "again" in settings or recorded(cell, work):
            continue
        if settings["rate"] is None or settings["rate"] < RATES[-2]:
            continue
        same = (recorded(training_cell(**settings | {"rate": rate}), work) for rate in (None, RATES[-2]))
        if (numbers := next(filter(None, same), None)) is None:
            continue
        model = str(built_in(work, settings["world"]).model)
        config = TrainConfig(run=work, model=model, learning_rate=RATES[-2])
        if make_trust_region(config, load_model(model, device="cpu", dtype="float32")).max_factor < 1:
            write_record(cell, numbers, work)


def searched_cells(world: str) -> list[Cell]:
    """Return the default's trainings at all rates, or at those of the ways if the world is not searched."""
    rates = RATES if WORLDS[world].searched else WAYS[REACTION]
    return [training_cell(world, SEARCH, DEFAULT, rate) for rate in rates]


def path_cells(worlds: Iterable[str]) -> list[Cell]:
    return [path_cell(world, SEARCH, objective, rate) for world in worlds for objective in PATH_OBJECTIVES
            for rate in PATH_RATES]  # fmt: skip


def first_cells(worlds: Sequence[str], noisy: Sequence[str]) -> list[Cell]:
    """Return the cells that depend only on the worlds."""
    return [*trainings(worlds, noisy), *forecasts_and_hints(worlds), *decided(worlds), *way_cells(worlds, noisy)]


def forecasts_and_hints(worlds: Sequence[str]) -> list[Cell]:
    """Return the cells of the forecasts and of the hint checks."""
    return forecast_cells(worlds) + [hint_cell(errors, seed) for errors in HINT_ERRORS for seed in SEEDS[:2]]


def forecast_cells(worlds: Iterable[str]) -> list[Cell]:
    worlds = [world for world in worlds if not WORLDS[world].aside]
    cells = [forecast_cell(world, sessions, ERRORS, 0) for world in worlds for sessions in SESSIONS]
    return cells + [forecast_cell(world, sessions, ERRORS, 0, TAUGHT) for world in worlds
                    for sessions in TAUGHT_SESSIONS]  # fmt: skip


def decided(worlds: Sequence[str]) -> list[Cell]:
    """Return the cells of edits and thumbs, and of prompts from the log."""
    some = [world for world in worlds if world in DECIDED]
    cells = [decided_cell(world, log, seed) for world in some for log in LOGS for seed in SEEDS]
    return cells + [mined_cell(world, SEEDS[0]) for world in some]


def way_cells(worlds: Sequence[str], noisy: Sequence[str]) -> list[Cell]:
    """Return the cells that tune the ways; on logs with irrelevant reactions, only those of the raw reactions."""
    cells = [way_cell(world, way, value, SEARCH) for world in worlds for way, values in WAYS.items()
              for value in values]  # fmt: skip
    return cells + [way_cell(world, REACTION, value, SEARCH) for world in noisy for value in WAYS[REACTION]]


def last_cells(worlds: Sequence[str], noisy: Sequence[str], found: dict[str, JSON]) -> list[Cell]:
    """Return the cells of the rates that ended best in `found`, and the cells to measure again."""
    tuned = [cell for world in worlds for cell in tuned_cells(world, found)]
    return tuned + seemingly_worse([*trainings(worlds, noisy), *tuned], found)


def tuned_cells(world: str, found: Mapping[str, JSON]) -> list[Cell]:
    """Return the default's trainings at the rate that ended best in `found`; none if not all rates were tried."""
    chosen = best(searched_cells(world), found)
    return [training_cell(world, seed, DEFAULT, chosen.settings["rate"]) for seed in SEEDS] if chosen else []


def seemingly_worse(cells: Sequence[Cell], found: dict[str, JSON]) -> list[Cell]:
    """Return cells that measure again each model that seems worse in `found` than before training, and that before.

    With few replies a loss can appear by chance; the new measurement has new and more replies.
    """
    again_cells = dict[str, Cell]()
    for cell in cells:
        if cell.measure is not measure_training or cell.settings["source"] != "run" or cell.name not in found:
            continue
        before, after = before_of(cell), found[cell.name]
        numbers = found.get(before.name)
        if (
            numbers
            and after.get("model", True)
            and any(numbers[n] - after[n] > SEEMS_WORSE for n in (CORRECTED, UNCORRECTED))
        ):
            again_cells |= {each.name: each for each in (again(before), again(cell))}
    return list(again_cells.values())


def best(cells: Sequence[Cell], found: Mapping[str, JSON]) -> Cell | None:
    """Return the cell that ended best (corrected and uncorrected count alike); None if a cell has no numbers."""

    def end(cell: Cell) -> float:
        numbers = found[cell.name]
        return float(numbers[CORRECTED] + numbers[UNCORRECTED]) if numbers.get("model", True) else -1.0

    return max(cells, key=end) if all(cell.name in found for cell in cells) else None


# -- cells ----------------------------------------------------------------------------------------------------------


def measure_world(work: Path, world: str, seed: int) -> JSON:
    """Build a world, judge and score its log, and measure how good hints and verdicts are."""
    name, _, share = world.partition("-")
    models_of = built_in(work, name) if share else None
    built = build(WORLDS[name], built_in(work, world).folder, irrelevant=float(share or 0), seed=seed,
                  models_of=models_of)  # fmt: skip
    run = prepared(built, built.folder / "run")
    prepare_reaction(built, run)
    if not share:
        prepare_trl(run)
    return judged_right(built, run) | {"with_hint": hinted_accuracy(built, run, SEARCH)[CORRECTED]}


def world_cell(world: str, build: int = BUILD) -> Cell:
    return Cell(f"world-{world}", measure_world, {"world": world, "seed": build})


def measure_hints(work: Path, errors: float, seed: int) -> JSON:
    """Return recall and precision of `opdkit teacher --check-hints` if a fifth of the hints is bad."""
    found = hints.measure(errors, HINT_TOPICS, seed, samples=8)
    return {name: found[name] for name in ("hints", "planted", "dropped", "found", "recall", "precision")}


def hint_cell(errors: float, seed: int) -> Cell:
    return Cell(f"hints-{errors:g}-{seed}", measure_hints, {"errors": errors, "seed": seed})
