"""Measurements: the presets, alternatives to their defaults, log sizes, two rounds, a noisy judge, few sessions."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from shutil import rmtree

from opdkit import __version__
from opdkit.config.fields import JSON
from opdkit.config.shared import OBJECTIVES
from opdkit.config.train import TrainConfig
from opdkit.store.reading import read_all

from .cells import Cell
from .noise import noisy
from .rounds import two_rounds
from .runs import MODEL, branch, epoch_model, final_model, judged, passed, scores, trained
from .sessions import until_it_holds

LEARNING_RATES = (3e-4, 6e-4, 1e-3, 1.5e-3)
SHORT, LONG = 2, 6  # epochs of a training, which ends at a learning rate of 0
LONG_RATE, TOO_HIGH = 6e-4, 1.5e-3  # the best rate for 2 epochs can be too high for 6
TUNING_SEEDS = (100, 101, 102)  # choose rates and the opd recipe; the second look at the ablations uses them too
TUNING_SAMPLES = 4

# name -> options of `opdkit train`; all other options have their defaults
PRESETS: dict[str, JSON] = {name: {"objective": name} for name in OBJECTIVES}
DEFAULT = TrainConfig.objective
MORE = 3  # times as many seeds for the default's short trainings: what users get should be known best
WRITTEN = (DEFAULT, "distill")  # also trained with replies that the teacher writes to each hinted prompt
# Alternatives to the defaults, one seed each: name -> (preset, options that replace those of its long trainings)
VARIANTS: dict[str, tuple[str, JSON]] = {
    "binary, blame on every token": ("binary", {"negative_below": 1.0}),
    "hybrid, reward weight 1": ("hybrid", {"reward_weight": 1.0}),
    "hybrid, blame on every token": ("hybrid", {"negative_below": 1.0}),
    "hybrid, reward weight 1, blame on every token": ("hybrid", {"reward_weight": 1.0, "negative_below": 1.0}),
    "hybrid, KL k3 0.1": ("hybrid", {"kl_coef": 0.1, "kl_estimator": "k3"}),
}
ROUNDS: dict[str, JSON] = {"opd": {"learning_rate": 3e-4}, DEFAULT: {"learning_rate": 6e-4}}
ROUND_EPOCHS, ROUND_SAMPLES = 3, 2
SIZES = (44, 160, 240)  # other numbers of sessions than SESSIONS
WRONG, VOTES = (0.1, 0.3), (1, 3, 5, 9)
PREFERENCES = {"weather": "celsius", "cooking": "steps", "trains": "clock24", "orders": "order_id"}
ORDERS = 5
ECHO_SAMPLES = 14  # of 72 prompts: 1,008 replies


# -- cells ----------------------------------------------------------------------------------------------------------


def rate_cells() -> list[Cell]:
    """Return a cell per preset, learning rate and tuning seed."""
    recipes = [(name, False) for name in PRESETS] + [(name, True) for name in WRITTEN]
    return [
        Cell(f"{rate_name(name, rate, written)}-{seed}", tuning,
             {"name": name, "options": PRESETS[name] | {"learning_rate": rate}, "seed": seed,
              "written": written})
        for name, written in recipes
        for rate in LEARNING_RATES
        for seed in TUNING_SEEDS
    ]  # fmt: skip


def rate_name(name: str, rate: float, written: bool = False) -> str:
    return f"rate-{slug(name)}{'-written' * written}-{rate:g}"


def ends(rates: dict[str, JSON], name: str, rate: float, written: bool = False) -> float:
    """Return the share of right replies after a short training, as a mean over all topics and the tuning seeds.

    Topics that nobody corrects count too: the rate that teaches fastest may forget most.
    """
    cells = (rates[f"{rate_name(name, rate, written)}-{seed}"] for seed in TUNING_SEEDS)
    return mean(mean(cell["passed"].values()) for cell in cells)


def best_rate(rates: dict[str, JSON], name: str, written: bool = False) -> float:
    """Return the learning rate with which short trainings end best."""
    return max(LEARNING_RATES, key=lambda rate: ends(rates, name, rate, written))


def tuned(rates: dict[str, JSON]) -> dict[str, float]:
    """Return preset, or "preset, written" -> the learning rate of its short trainings."""
    return {name: best_rate(rates, name) for name in PRESETS} | {
        f"{name}, written": best_rate(rates, name, written=True) for name in WRITTEN
    }


def cells(rates: dict[str, float], seeds: Sequence[int]) -> list[Cell]:
    """Return all other cells; each preset's short trainings have its tuned rate."""
    short = {name: preset | {"learning_rate": rates[name]} for name, preset in PRESETS.items()}
    long = {name: preset | {"learning_rate": LONG_RATE} for name, preset in PRESETS.items()}
    variants = {name: long[preset] | over for name, (preset, over) in VARIANTS.items()}
    best = short[DEFAULT]

    def of(name: str) -> Sequence[int]:
        return range(MORE * len(seeds)) if name == DEFAULT else seeds

    found = [
        Cell(f"short-{slug(name)}-{seed}", learning, {"name": name, "options": some, "seed": seed})
        for name, some in short.items()
        for seed in of(name)
    ]
    found += [
        Cell(f"turn-{slug(name)}-{seed}", by_turn, {"name": name, "options": some, "seed": seed})
        for name, some in short.items()
        for seed in of(name)
    ]  # fmt: skip
    found += [
        Cell(f"written-{slug(name)}-{seed}", learning,
             {"name": name, "options": short[name] | {"learning_rate": rates[f"{name}, written"]}, "seed": seed,
              "written": True})
        for name in WRITTEN
        for seed in of(name)
    ]  # fmt: skip
    found += [
        Cell(f"size-{sessions}", of_size, {"sessions": sessions, "options": best, "seeds": list(seeds)})
        for sessions in sorted(SIZES, reverse=True)
    ]
    found += [
        Cell(f"rounds-{name}-{seed}", two_rounds,
             {"name": name, "options": PRESETS[name] | some, "seed": seed, "epochs": ROUND_EPOCHS,
              "samples": ROUND_SAMPLES})
        for name, some in ROUNDS.items()
        for seed in seeds
    ]  # fmt: skip
    found += [
        Cell(f"noise-{wrong:g}-{votes}-{seed}", noisy,
             {"wrong": wrong, "votes": votes, "options": best, "seed": seed, "epochs": SHORT})
        for wrong, votes in [(0.0, 1), *((w, m) for w in WRONG for m in VOTES)]
        for seed in seeds
    ]  # fmt: skip
    found += [
        Cell(f"sessions-{topic}-{order}", until_it_holds,
             {"topic": topic, "preference": wanted, "options": best, "seed": order})
        for topic, wanted in PREFERENCES.items()
        for order in range(ORDERS)
    ]  # fmt: skip
    found += [
        Cell(f"long-{slug(name)}-{seed}", curve, {"name": name, "options": some, "seed": seed, "epochs": LONG})
        for name, some in (long | variants).items()
        for seed in (seeds if name in long else seeds[:1])
    ]
    found += [
        Cell(f"long-opd_too_high-{seed}", curve,
             {"name": "opd too high", "options": long["opd"] | {"learning_rate": TOO_HIGH}, "seed": seed,
              "epochs": LONG})
        for seed in seeds
    ]  # fmt: skip
    found += [Cell(f"base-{seed}", base, {"seed": seed}) for seed in seeds]
    found.append(Cell("echo", echo, {"options": best, "seed": 0}))
    return found


def slug(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "_").lower()


# -- measurements ---------------------------------------------------------------------------------------------------


def base(work: Path, seed: int) -> JSON:
    """Measure the model before any training."""
    return {"passed": passed(MODEL, seed)}


def tuning(work: Path, name: str, options: JSON, seed: int, written: bool) -> JSON:
    """Measure the shares passed after a short training, with few samples."""
    source = work / ("base-written" if written else "base")
    run = branch(source, work / f"{rate_name(name, options['learning_rate'], written)}-{seed}")
    trained(run, MODEL, options, seed, SHORT)
    numbers = {"passed": passed(final_model(run), seed, TUNING_SAMPLES)}
    rmtree(run)
    return numbers


def curve(work: Path, name: str, options: JSON, seed: int, epochs: int) -> JSON:
    """Measure the shares passed after each epoch."""
    run = branch(work / "base", work / f"long-{slug(name)}-{seed}")
    trained(run, MODEL, options | {"keep_epochs": True}, seed, epochs)
    numbers = {"epochs": [passed(epoch_model(run, epoch), seed) for epoch in range(1, epochs + 1)]}
    rmtree(run)
    return numbers


def learning(work: Path, name: str, options: JSON, seed: int, written: bool = False) -> JSON:
    """Measure the cost of a short training, and the scores of `opdkit eval` after it."""
    source = work / ("base-written" if written else "base")
    run = branch(source, work / f"short-{slug(name)}{'-written' * written}-{seed}")
    cost = trained(run, MODEL, options, seed, SHORT)
    numbers = {"cost": cost, "scores": scores(run, seed)}
    rmtree(run)
    return numbers


def by_turn(work: Path, name: str, options: JSON, seed: int) -> JSON:
    """Measure a short training whose steps take single turns: its cost, and the shares passed after it."""
    run = branch(work / "base", work / f"turn-{slug(name)}-{seed}")
    cost = trained(run, MODEL, options | {"batch_by": "turn"}, seed, SHORT)
    numbers = {"cost": cost, "passed": passed(final_model(run), seed)}
    rmtree(run)
    return numbers


def of_size(work: Path, sessions: int, options: JSON, seeds: Sequence[int]) -> JSON:
    """Measure short trainings on the first `sessions` sessions of the log."""
    base, shares = judged(work, sessions), []
    for seed in seeds:
        run = branch(base, work / f"size-{sessions}-{seed}")
        trained(run, MODEL, options, seed, SHORT)
        shares.append(passed(final_model(run), seed))
    return described(base) | {"passed": shares}


def echo(work: Path, options: JSON, seed: int) -> JSON:
    """Measure with `opdkit eval` how many of a thousand replies after a short training repeat a hint."""
    run = branch(work / "base", work / "echo")
    trained(run, MODEL, options, seed, SHORT)
    found = scores(run, seed, ECHO_SAMPLES)
    return {
        "scores": found,
        "replies": sum(r["sample"] > 0 and r["model"] == "after" for r in read_all(run, "replies")),
    }


# -- numbers --------------------------------------------------------------------------------------------------------


def mean_corrected(shares: dict[str, float]) -> float:
    """Return the mean share over the topics that users correct."""
    return mean(shares[domain] for domain in PREFERENCES)


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def described(run: Path) -> JSON:
    """Describe the log and its targets in numbers."""
    targets = list(read_all(run, "targets"))
    return {
        "opdkit": __version__,
        "turns": len(targets),
        "hinted": sum(row["hint"] is not None for row in targets),
        "rewards": {str(r): sum(row["reward"] == r for row in targets) for r in (-1, 0, 1)},
    }
