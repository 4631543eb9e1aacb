"""Ablations: each default that differs from the original implementations, against their value.

The questions and the reported seeds were fixed before the first of these trainings, and the reported seeds were run
once. After the first cells about hints, three variants and a tuning of each variant's own rate were dropped for lack of
time. The second look, at the tuning seeds, was added when most of the reported seeds had been seen. A variant is
compared with the same objective under its defaults, at the same learning rate, which tuning seeds chose for the
defaults. The schedule changes the mean rate, so the rate of a constant schedule is tuned by itself.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree

from opdkit.config.fields import JSON
from opdkit.store.reading import read_all

from .cells import Cell
from .exact_kl import exact_kl_term, kl_on_the_log
from .experiments import (
    DEFAULT,
    LEARNING_RATES,
    LONG,
    ROUND_SAMPLES,
    SHORT,
    TUNING_SAMPLES,
    TUNING_SEEDS,
    WRONG,
    ends,
    rate_name,
    slug,
)
from .noise import noisy, right_hints
from .rounds import two_rounds
from .runs import MODEL, SAMPLES, branch, final_model, passed, trained

RATES = LEARNING_RATES[1:]
LOW_RATES = LEARNING_RATES[:3]  # if the rate does not fall to 0, its mean is twice as high
KL_COEF = 0.1
NOISE_VOTES = 5


@dataclass(frozen=True)
class Variant:
    """Short training that differs from the defaults of its objective."""

    objective: str
    change: str  # in words; "" for the defaults
    options: JSON = field(default_factory=dict)  # of `opdkit train`
    source: str = "base"  # run of runs.SOURCES that it trains on
    rates: Sequence[float] = ()  # to choose from with the tuning seeds; none: the rate of the objective
    epochs: int = SHORT
    second_round: bool = False  # a further epoch, on the trained model's replies to the logged prompts
    exact_kl: bool = False  # instead of its estimate; opdkit has no such option

    @property
    def name(self) -> str:
        return f"{self.objective}, {self.change}"


def _each(objectives: Sequence[str], change: str, options: JSON, **other: object) -> tuple[Variant, ...]:
    return tuple(Variant(name, change, options, **other) for name in objectives)  # type: ignore[arg-type]


# question -> variants with the original value, one per objective that the question concerns
ABLATIONS: dict[str, tuple[Variant, ...]] = {
    "hint": _each((DEFAULT, "topk", "opd"), "longest hint", {}, source="base-longest"),
    "support": _each((DEFAULT, "topk", "hybrid"), "top 4", {}, source="base-top4"),
    "schedule": _each((DEFAULT, "opd"), "constant", {"schedule": "constant"}, rates=LOW_RATES),
    "weight": _each((DEFAULT, "hybrid", "combine"), "reward weight 1", {"reward_weight": 1.0}),
    "blame": _each((DEFAULT, "hybrid", "binary"), "blame on every token", {"negative_below": 1.0}),
}
# The KL term, on the default objective. The first variant has none; the last has the value that the others estimate.
KL: tuple[Variant, ...] = (
    Variant(DEFAULT, "KL off"),
    *(Variant(DEFAULT, f"KL {k}", {"kl_coef": KL_COEF, "kl_estimator": k}) for k in ("k1", "k2", "k3")),
    Variant(DEFAULT, "KL exact", {"kl_coef": KL_COEF}, exact_kl=True),
)
RATIO: JSON = {"clip_low": 1.0, "clip_high": 10.0}
ADVANTAGE: JSON = {"advantage_clip": 0.0}
# Settings of opd that were tried, only on tuning seeds; the setting that ends best is the recipe.
OPD: tuple[Variant, ...] = (
    Variant("opd", "ratio not clipped", RATIO, rates=LOW_RATES),
    Variant("opd", "advantage not clipped", ADVANTAGE, rates=RATES),
    Variant("opd", "min advantage 0.5", {"min_advantage": 0.5}, rates=RATES),
    Variant("opd", "single turns", {"batch_by": "turn"}, rates=RATES),
    Variant("opd", "KL k1 0.1", {"kl_coef": KL_COEF, "kl_estimator": "k1"}, rates=RATES),
    Variant("opd", "replies of the teacher", source="base-written", rates=RATES),
    # The second round of trials combines what helped in the first.
    Variant("opd", "neither clipped", RATIO | ADVANTAGE, rates=LOW_RATES),
    Variant("opd", "neither clipped, replies of the teacher", RATIO | ADVANTAGE, "base-written", LOW_RATES[:2]),
    Variant("opd", "neither clipped, 6 epochs", RATIO | ADVANTAGE, rates=LOW_RATES[:2], epochs=LONG),
    Variant("opd", "neither clipped, a second round", RATIO | ADVANTAGE, rates=LOW_RATES[:2], second_round=True),
    # The third round.
    Variant(
        "opd",
        "neither clipped, replies of the teacher, a second round",
        RATIO | ADVANTAGE,
        "base-written",
        LOW_RATES[:1],
        second_round=True,
    ),
)


# -- cells ----------------------------------------------------------------------------------------------------------


def variants() -> list[Variant]:
    """Return all variants."""
    return [*(v for values in ABLATIONS.values() for v in values), *KL, *OPD]


def rate_cells() -> list[Cell]:
    """Return a cell for every variant at each of its learning rates."""
    return [_cell(rate_name(v.name, rate), v, rate, seed, TUNING_SAMPLES)
            for v in variants() for rate in v.rates for seed in TUNING_SEEDS]  # fmt: skip


def tuned(rates: dict[str, JSON]) -> dict[str, float]:
    """Return variant -> the learning rate with which its short trainings end best."""
    return {v.name: max(v.rates, key=lambda rate: ends(rates, v.name, rate)) for v in variants() if v.rates}


def recipe(rates: dict[str, JSON]) -> Variant:
    """Return the settings of opd that end best on the tuning seeds."""
    return max(OPD, key=lambda v: max(ends(rates, v.name, rate) for rate in v.rates))


def cells(rates: dict[str, JSON], tuned: dict[str, float], seeds: Sequence[int]) -> list[Cell]:
    """Return the cells of the reported seeds, each variant at its rate."""
    found = [
        _cell(f"ablation-{slug(v.name)}", v, rate_of(v, tuned), seed, SAMPLES, drift=v in KL)
        for v in reported(rates)
        for seed in seeds
    ]
    found += [
        _cell(f"again-{slug(v.name)}", v, rate_of(v, tuned), seed, TUNING_SAMPLES)
        for v in seen_again()
        for seed in TUNING_SEEDS
    ]
    found += [
        Cell(f"longest-{wrong:g}-{NOISE_VOTES}-{seed}", noisy,
             {"wrong": wrong, "votes": NOISE_VOTES, "seed": seed, "epochs": SHORT, "hint_select": "longest",
              "options": {"objective": DEFAULT, "learning_rate": tuned[DEFAULT]}})
        for wrong in WRONG
        for seed in seeds
    ]  # fmt: skip
    found += [Cell(f"hints-{source}", hints_read, {"source": source}) for source in ("base", "base-longest")]
    return found


def reported(rates: dict[str, JSON]) -> list[Variant]:
    """Return the variants that are trained with the reported seeds; of the settings of opd, only the recipe."""
    return [*(v for values in ABLATIONS.values() for v in values), *KL, recipe(rates)]


def seen_again() -> list[Variant]:
    """Return the variants that are also trained with the tuning seeds, as a second look."""
    return [v for values in ABLATIONS.values() for v in values if not v.rates]


def rate_of(variant: Variant, tuned: dict[str, float]) -> float:
    """Return the learning rate of a variant: its own, or its objective's if it is not tuned."""
    return tuned[variant.name if variant.rates else variant.objective]


def _cell(stem: str, variant: Variant, rate: float, seed: int, samples: int, *, drift: bool = False) -> Cell:
    options = {"objective": variant.objective, "learning_rate": rate} | variant.options
    settings: JSON = {"name": stem, "options": options, "seed": seed}
    if variant.second_round:
        return Cell(f"{stem}-{seed}", second_round, settings | {"epochs": variant.epochs, "source": variant.source})
    settings |= {"source": variant.source, "samples": samples, "exact_kl": variant.exact_kl, "drift": drift,
                 "epochs": variant.epochs}  # fmt: skip
    return Cell(f"{stem}-{seed}", ablated, settings)


def ablated(
    work: Path,
    name: str,
    options: JSON,
    seed: int,
    source: str,
    samples: int,
    exact_kl: bool,
    drift: bool,
    epochs: int,
) -> JSON:
    """Measure a training: its cost, the shares passed, and with `drift` the KL to the model before training."""
    run = branch(work / source, work / f"{name}-{seed}")
    with exact_kl_term() if exact_kl else nullcontext():
        cost = trained(run, MODEL, options, seed, epochs)
    numbers = {"cost": cost, "passed": passed(final_model(run), seed, samples)}
    if drift:
        numbers["kl"] = kl_on_the_log(run, MODEL, final_model(run))
    rmtree(run)
    return numbers


def second_round(work: Path, name: str, options: JSON, seed: int, epochs: int, source: str) -> JSON:
    """Measure the shares passed after a training and an epoch on the trained model's own replies."""
    numbers = two_rounds(work, name, options, seed, epochs, ROUND_SAMPLES, source)
    return {"passed": numbers["second"]}


def hints_read(work: Path, source: str) -> JSON:
    """Return the share of the hinted turns whose teacher reads a hint for the style that the user wants."""
    run = work / source
    right = right_hints(run)
    read = [row["hint"] in right[row["turn_id"]] for row in read_all(run, "targets") if row["hint"] is not None]
    return {"hinted": len(read), "right": sum(read) / len(read)}
