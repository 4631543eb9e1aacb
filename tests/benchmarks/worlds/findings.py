"""Numbers of docs/learning.md, computed from the results of the benchmark, question by question.

Every function accepts incomplete results: it leaves out what is not measured.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from statistics import correlation
from statistics import mean as mean_of
from typing import NamedTuple

from opdkit.config.fields import JSON
from opdkit.evaluate.checks import CORRECTED, UNCORRECTED

from ..learning.cells import Cell
from . import WORLDS
from .benchmark import (
    DEFAULT,
    HINT_ERRORS,
    NOISE,
    NOISY,
    OBJECTIVES,
    RATES,
    SEARCH,
    SEEDS,
    best,
    first_cells,
    forecast_cells,
    hint_cell,
    path_cells,
    tuned_cells,
    world_cell,
)
from .trainings import MOVED, again, before_cell, before_of, training_cell
from .ways import REACTION, WAYS, way_cell

WORSE = 0.02  # larger loss of either share: the model is worse than before training
BROKEN = 0.1  # larger loss of either share: a training without trust region is broken
ALL_NOISY = [f"{world}-{share:g}" for world in NOISY for share in NOISE]  # worlds with irrelevant reactions
# Cells of the benchmark, without those that depend on results: the default's best rates, and repeated measurements.
PLANNED = {cell.name for cell in (*first_cells(list(WORLDS), ALL_NOISY), *map(world_cell, (*WORLDS, *ALL_NOISY)))}
_EDGE = 1e-9  # tolerance: a difference that equals a limit does not exceed it


class Shares(NamedTuple):
    """Shares of held-out replies that pass: for requests that the log corrects, and for the others."""

    corrected: float
    uncorrected: float

    @property
    def both(self) -> float:
        return self.corrected + self.uncorrected


class Change(NamedTuple):
    """Shares before and after a training or another way, with the same seed."""

    before: Shares
    after: Shares

    @property
    def gain(self) -> float:
        return self.after.corrected - self.before.corrected

    @property
    def forgotten(self) -> float:
        return self.before.uncorrected - self.after.uncorrected


def mean(values: Iterable[float]) -> float:
    """Return the mean; NaN if there are no values."""
    numbers = list(values)
    return mean_of(numbers) if numbers else nan


def mean_shares(shares: Iterable[Shares]) -> Shares:
    several = list(shares)
    return Shares(mean(s.corrected for s in several), mean(s.uncorrected for s in several))


@dataclass(frozen=True)
class Results:
    """Access to the cells of a results file, by their names, which depend on their settings."""

    cells: Mapping[str, JSON]

    @property
    def worlds(self) -> list[str]:
        """Return the names of the worlds that have any results."""
        measured = {str(numbers.get("world", "")).partition("-")[0] for numbers in self.cells.values()}
        return [name for name in WORLDS if name in measured]

    @property
    def build_seed(self) -> int | None:
        """Return the seed that the worlds were built with; None if the results have no world."""
        seeds = (numbers["seed"] for name, numbers in self.cells.items() if name.startswith("world-"))
        return next(seeds, None)

    def numbers(self, cell: Cell) -> JSON | None:
        return self.cells.get(cell.name)

    def is_refused(self, cell: Cell) -> bool:
        """Return True for a training that wrote no model."""
        numbers = self.numbers(cell)
        return numbers is not None and not numbers.get("model", True)

    def shares(self, cell: Cell) -> Shares | None:
        """Return the shares after a training or another way; if no model is written, those before it."""
        numbers = self.numbers(cell)
        if numbers is None:
            return None
        if self.is_refused(cell):
            return self.before(cell)
        return Shares(numbers[CORRECTED], numbers[UNCORRECTED])

    def before(self, cell: Cell) -> Shares | None:
        """Return the shares before a training of this world and seed; a noisy world has the clean world's model."""
        before = before_of(cell)
        numbers = self.numbers(again(before) if cell.settings.get("again") else before)
        return None if numbers is None else Shares(numbers[CORRECTED], numbers[UNCORRECTED])

    def change(self, cell: Cell) -> Change | None:
        before, after = self.before(cell), self.shares(cell)
        return None if before is None or after is None else Change(before, after)

    def last_look(self, cell: Cell) -> Change | None:
        """Return the change on new and more replies if it was measured again, else the first change."""
        return self.change(again(cell)) or self.change(cell)

    def changes(self, cells: Iterable[Cell]) -> list[Change]:
        return [change for change in map(self.change, cells) if change is not None]

    def count(self, cells: Iterable[Cell]) -> tuple[int, int]:
        """Return how many of the cells are measured, and how many are measured or planned."""
        names = {cell.name for cell in cells} & (PLANNED | self.cells.keys())
        return len(names & self.cells.keys()), len(names)


def own_cells(world: str) -> list[Cell]:
    """Return the trainings of the default without a given rate."""
    return [training_cell(world, seed, DEFAULT, None) for seed in SEEDS]


# -- the default without a learning rate ----------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnRate:
    """Default in a world without a given learning rate, and with the best rate of a search."""

    world: str
    own: Sequence[Change]  # one per seed
    rates: Sequence[float]  # rates that the trainings found
    best_rate: float | None
    best: Sequence[Change]  # with `best_rate`, one per seed

    @property
    def ratio(self) -> float | None:
        """Return the corrected share divided by that of the best rate."""
        reached, possible = (mean(c.after.corrected for c in changes) for changes in (self.own, self.best))
        return reached / possible if self.best and possible else None

    @property
    def forgotten(self) -> float:
        return mean(c.forgotten for c in self.own)

    @property
    def forgotten_more(self) -> float | None:
        """Return how much more is forgotten than with the best rate."""
        return self.forgotten - mean(c.forgotten for c in self.best) if self.best else None


def own_rates(results: Results) -> list[OwnRate]:
    found = []
    for world in results.worlds:
        tuned = tuned_cells(world, results.cells)
        numbers = [results.numbers(c) for c in own_cells(world) if not results.is_refused(c)]
        found.append(OwnRate(world, results.changes(own_cells(world)), [n["peak_rate"] for n in numbers if n],
                             tuned[0].settings["rate"] if tuned else None, results.changes(tuned)))  # fmt: skip
    return [row for row in found if row.own]


# -- models that are written -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """Training of opdkit, and its outcome."""

    world: str
    objective: str
    rate: float | None  # the given rate
    seed: int
    change: Change
    refused: bool  # no model was written
    alarm: bool  # a validation found it broken

    @property
    def is_worse(self) -> bool:
        """Return True if a model is written that lost more than WORSE in either share."""
        return any(b - a > WORSE + _EDGE for b, a in zip(*self.change, strict=True))


def search_cells(worlds: Iterable[str]) -> list[Cell]:
    return [training_cell(world, SEARCH, objective, rate) for world in worlds for objective in OBJECTIVES
            for rate in RATES]  # fmt: skip


def noisy_worlds(results: Results) -> list[str]:
    return [world for world in ALL_NOISY if world.partition("-")[0] in results.worlds]


def training_cells(results: Results) -> list[Cell]:
    """Return the benchmark's trainings on judged hints: at all rates, the default without a rate and at its best."""
    own = [cell for world in (*results.worlds, *noisy_worlds(results)) for cell in own_cells(world)]
    tuned = [cell for world in results.worlds for cell in tuned_cells(world, results.cells)]
    return search_cells(results.worlds) + own + tuned


def trainings(results: Results) -> list[Training]:
    found = []
    for cell in training_cells(results):
        settings, numbers, change = cell.settings, results.numbers(cell), results.last_look(cell)
        if numbers is not None and change is not None:
            found.append(Training(settings["world"], settings["objective"], settings["rate"], settings["seed"], change,
                                  results.is_refused(cell), bool(numbers.get("alarms"))))  # fmt: skip
    return found


# -- trainings that nothing holds back ------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingPath:
    """Validation scores and true shares along a training without trust region; the first mark is before training."""

    world: str
    objective: str
    rate: float
    scores: Sequence[float]
    alarms: Sequence[bool]
    truth: Sequence[Shares]
    error: str | None  # error that ended it
    marks: Sequence[int]  # steps after which the shares were measured
    tokens: int | None  # tokens that its steps read

    @property
    def steps(self) -> int:
        return self.marks[-1]

    @property
    def losses(self) -> list[float]:
        """Return the larger loss of the two shares since before training, mark by mark."""
        return [max(b - a for b, a in zip(self.truth[0], shares, strict=True)) for shares in self.truth]

    @property
    def breaks(self) -> bool:
        return max(self.losses) > BROKEN + _EDGE

    @property
    def alarm(self) -> int | None:
        """Return the index of the first mark with an alarm; an error is an alarm after the last mark."""
        marks = (k for k, alarm in enumerate(self.alarms) if alarm)
        return next(marks, None if self.error is None else len(self.alarms))

    @property
    def lost_before_alarm(self) -> float | None:
        """Return the share of a broken path's loss that had happened at the last mark before the alarm, if any."""
        if self.alarm is None or not self.breaks:
            return None
        return max(0.0, self.losses[self.alarm - 1]) / max(self.losses)

    @property
    def in_time(self) -> bool:
        """Return True if less than half of the total loss had happened at the last mark before the alarm."""
        lost = self.lost_before_alarm
        return lost is not None and lost < 0.5

    @property
    def is_honest(self) -> bool:
        """Return True for a path that never breaks and ends better than it began."""
        return not self.breaks and self.error is None and self.truth[-1].both > self.truth[0].both


def paths(results: Results) -> list[TrainingPath]:
    found = []
    for cell in path_cells(results.worlds):
        numbers = results.numbers(cell)
        if numbers and numbers["marks"]:
            marks, settings = numbers["marks"], cell.settings
            found.append(TrainingPath(
                settings["world"], settings["objective"], settings["rate"], [mark["score"] for mark in marks],
                [mark["alarm"] for mark in marks], [Shares(mark[CORRECTED], mark[UNCORRECTED]) for mark in marks],
                numbers["error"], [mark["step"] for mark in marks], numbers["trained"],
            ))  # fmt: skip
    return found


# -- score and truth ------------------------------------------------------------------------------------------------


class Checkpoint(NamedTuple):
    """Student at a mark of a path."""

    world: str
    score: float
    error: float  # share of held-out replies that do not pass: 1 - the mean of both shares


def checkpoints(results: Results, after: float = MOVED) -> list[Checkpoint]:
    """Return all marks of all paths after the share `after` of their steps, and once per world that before training."""
    rows = [Checkpoint(path.world, score, 1 - shares.both / 2) for path in paths(results)
            for step, score, shares in zip(path.marks, path.scores, path.truth, strict=True)
            if step >= max(1, int(after * path.steps))]  # fmt: skip
    first = {(path.world, path.scores[0], 1 - path.truth[0].both / 2) for path in paths(results)}
    return rows + [Checkpoint(*row) for row in sorted(first)]


def spearman(rows: Sequence[Checkpoint]) -> float | None:
    """Return the rank correlation of score and error."""
    return rank_correlation([row.score for row in rows], [row.error for row in rows])


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's correlation of two columns; None if one of them does not vary."""
    return correlation_of([_ranks(first), _ranks(second)])


def correlation_of(columns: Sequence[Sequence[float]]) -> float | None:
    """Return Pearson's correlation of two columns; None if one of them does not vary."""
    return correlation(*columns) if all(len(set(column)) > 1 for column in columns) else None


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


# -- irrelevant reactions -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """Default on judged hints, and raw reactions as hints, on a log with a share of irrelevant reactions."""

    world: str
    share: float
    judged: Shares | None  # mean over the seeds
    raw: Shares | None  # at its best rate
    judged_loss: float | None  # the larger loss of both shares, compared with the clean log
    raw_loss: float | None


def noise_cells(results: Results, world: str) -> tuple[list[Cell], list[Cell]]:
    """Return the trainings on judged hints, and the best training on raw reactions; none if it is unknown."""
    raw = best([way_cell(world, REACTION, rate, SEARCH) for rate in WAYS[REACTION]], results.cells)
    return own_cells(world), [raw] if raw else []


def noises(results: Results) -> list[Noise]:
    found = []
    for world in NOISY:
        clean: list[Shares | None] = [None, None]
        for share in (0.0, *NOISE):
            kinds = noise_cells(results, f"{world}-{share:g}" if share else world)
            now = [mean_shares(c.after for c in changes) if (changes := results.changes(kind)) else None
                   for kind in kinds]  # fmt: skip
            clean = clean if share else now
            losses = [max(c.corrected - n.corrected, c.uncorrected - n.uncorrected) if c and n else None
                      for c, n in zip(clean, now, strict=True)]  # fmt: skip
            if any(now):
                found.append(Noise(world, share, now[0], now[1], losses[0], losses[1]))
    return found


# -- hints ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HintCheck:
    """Bad hints that `opdkit teacher --check-hints` drops, with a judge that errs in a share of its answers."""

    errors: float
    hints: int
    planted: int
    dropped: int
    found: int  # dropped hints that were planted

    @property
    def recall(self) -> float:
        return self.found / self.planted

    @property
    def precision(self) -> float:
        return self.found / self.dropped if self.dropped else nan


def hint_checks(results: Results) -> list[HintCheck]:
    """Return one check per error rate of the judge; the hints of all seeds are counted together."""
    found = []
    for errors in HINT_ERRORS:
        several = [n for seed in SEEDS if (n := results.numbers(hint_cell(errors, seed)))]
        names = ("hints", "planted", "dropped", "found")
        if several:
            found.append(HintCheck(errors, *(sum(numbers[name] for numbers in several) for name in names)))
    return found


# -- forecasts ------------------------------------------------------------------------------------------------------


STUDENTS = {False: "of the log", True: "taught"}  # of a forecast, by `taught`


@dataclass(frozen=True)
class Forecast:
    """Gain that was forecast from some sessions of a log, and the gain that the training had."""

    world: str
    sessions: int
    taught: bool  # the student had already been trained on the log
    gain: float
    interval: tuple[float, float] | None  # None: too few sessions for an interval
    go: bool
    measured: float
    refused: bool

    @property
    def is_sign_right(self) -> bool:
        return (self.gain > 0) == (self.measured > 0)

    @property
    def is_covered(self) -> bool | None:
        if self.interval is None:
            return None
        low, high = self.interval
        return low - _EDGE <= self.measured <= high + _EDGE


def forecasts(results: Results) -> list[Forecast]:
    """Return the forecasts with a gain: if no hint can be tested, there is no gain."""
    found = []
    for cell in forecast_cells(results.worlds):
        numbers = results.numbers(cell)
        if numbers and numbers["gain"] is not None:
            settings, before = cell.settings, numbers["before"][CORRECTED]
            interval = None if numbers["low"] is None else (numbers["low"], numbers["high"])
            found.append(Forecast(settings["world"], settings["sessions"], settings["taught"] is not None,
                                  numbers["gain"], interval, numbers["go"],
                                  numbers.get(CORRECTED, before) - before, results.is_refused(cell)))  # fmt: skip
    return found


# -- what a user would do instead -----------------------------------------------------------------------------------

OURS = "opdkit"  # its default


@dataclass(frozen=True)
class Way:
    """Way to use a log in a world, at its own best value."""

    world: str
    name: str
    value: float | None  # rate, or number of rules; opdkit's default has none
    changes: Sequence[Change]  # default: one per seed; other ways: one, with the best value
    tokens: float  # tokens that models read and wrote for it; mean over the changes
    request: float  # tokens of the prompts of held-out requests

    @property
    def gain(self) -> float:
        return mean(c.gain for c in self.changes)

    @property
    def forgotten(self) -> float:
        return mean(c.forgotten for c in self.changes)


def ways(results: Results) -> dict[str, dict[str, Way]]:
    """Return world -> name -> way; the default is the first way.

    All ways of a world begin with the same model. Its shares are the mean over all seeds, so that the chance of one
    seed favours no way.
    """
    found: dict[str, dict[str, Way]] = {}
    for world in results.worlds:
        before = mean_shares(filter(None, (results.before(before_cell(world, seed)) for seed in (SEARCH, *SEEDS))))
        for name, value, cells in _way_cells(results, world):
            changes = [Change(before, before if results.is_refused(cell) else shares)
                       for cell in cells if (shares := results.shares(cell))]  # fmt: skip
            numbers = [n for cell in cells if (n := results.numbers(cell))]
            if changes:
                tokens = mean(sum(n["tokens"].values()) for n in numbers if "tokens" in n)
                request = mean(n["prompt_tokens"] for n in numbers if n.get("prompt_tokens"))
                found.setdefault(world, {})[name] = Way(world, name, value, changes, tokens, request)
    return found


def _way_cells(results: Results, world: str) -> Iterator[tuple[str, float | None, list[Cell]]]:
    yield OURS, None, own_cells(world)
    for name, values in WAYS.items():
        cells = [way_cell(world, name, value, SEARCH) for value in values]
        if chosen := best(cells, results.cells):
            yield name, values[cells.index(chosen)], [chosen]


def ahead(ways_of_world: Mapping[str, Way]) -> list[Way]:
    """Return the ways that gain more than the default, in the order of their gains."""
    ours = ways_of_world.get(OURS)
    return sorted((w for w in ways_of_world.values() if ours and w.gain > ours.gain + _EDGE), key=lambda w: -w.gain)


def forgets_less(ways_of_world: Mapping[str, Way], names: Iterable[str]) -> list[Way]:
    """Return the ways in `names` that do not forget more than the default; none if the default forgets nothing."""
    ours = ways_of_world.get(OURS)
    if not ours or ours.forgotten <= _EDGE:
        return []
    return [w for name in names if (w := ways_of_world.get(name)) and w.forgotten <= ours.forgotten + _EDGE]


# -- costs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Tokens of the default's trainings in a world, all seeds together."""

    world: str
    trained: int
    validated: int
    steps: int
    plain: float | None  # tokens per step without trust region

    @property
    def validation(self) -> float:
        """Return the tokens of validation per token of training steps."""
        return self.validated / self.trained

    @property
    def trust_region(self) -> float | None:
        """Return the fraction by which a step reads more than without trust region."""
        return self.trained / self.steps / self.plain - 1 if self.plain else None

    @property
    def together(self) -> float | None:
        """Return the fraction by which a training reads more than its steps would without trust region."""
        return (self.trained + self.validated) / self.steps / self.plain - 1 if self.plain else None


def costs(results: Results) -> list[Cost]:
    found = []
    for world in results.worlds:
        several = [n for cell in own_cells(world) if (n := results.numbers(cell)) and "tokens" in n]
        free = [p for p in paths(results) if (p.world, p.objective) == (world, DEFAULT) and p.tokens and p.steps]
        if several:
            trained, validated = (sum(n["tokens"][kind] for n in several) for kind in ("trained", "validated"))
            plain = mean(p.tokens / p.steps for p in free if p.tokens) if free else None
            found.append(Cost(world, trained, validated, sum(n["steps"] for n in several), plain))
    return found


# -- worlds ---------------------------------------------------------------------------------------------------------


def built_worlds(results: Results) -> dict[str, JSON]:
    """Return world name -> numbers of its log, with and without irrelevant reactions."""
    names = (*results.worlds, *noisy_worlds(results))
    return {name: numbers for name in names if (numbers := results.numbers(world_cell(name)))}
