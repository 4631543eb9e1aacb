"""What is measured: the presets, what their defaults were chosen against, two rounds, a noisy judge, few sessions."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from shutil import rmtree

from opdkit import __version__
from opdkit.config import JSON
from opdkit.stages import OBJECTIVES, TrainConfig
from opdkit.store import read_all

from .cells import Cell
from .noise import noisy
from .rounds import two_rounds
from .runs import MODEL, branch, epoch_model, final_model, judged, passed, scores, trained
from .sessions import until_it_holds

LEARNING_RATES = (3e-4, 6e-4, 1e-3)
SHORT, LONG = 2, 6  # epochs of a training, which ends at a learning rate of 0
LONG_RATE, TOO_HIGH = 3e-4, 6e-4  # what is best for 2 epochs can be too high for 6
TUNING_SEEDS = {SHORT: (100, 101, 102), LONG: (100,)}  # used for nothing else
TUNING_SAMPLES = 4

# name -> options of `opdkit train`; what is not named is the default, apart from BATCH: the log is small, and of 200
# turns batches of 16 make 13 steps
BATCH: JSON = {"batch_turns": 8}
PRESETS: dict[str, JSON] = {name: {"objective": name} for name in OBJECTIVES}
DEFAULT = TrainConfig.objective
# What the defaults were chosen against, one seed each: name -> (preset, options over its tuned ones)
VARIANTS: dict[str, tuple[str, JSON]] = {
    "binary, blame on every token": ("binary", {"blame_below": 1.0}),
    "hybrid, reward weight 1, blame on every token": ("hybrid", {"reward_weight": 1.0, "blame_below": 1.0}),
    "hybrid, KL k3 0.1": ("hybrid", {"kl_coef": 0.1}),
}
ROUNDS: dict[str, JSON] = {"opd": {"learning_rate": 3e-4}, DEFAULT: {"learning_rate": 6e-4}}
ROUND_EPOCHS, ROUND_SAMPLES = 3, 2
SIZES = (44, 160, 240)  # sessions of the log, beside SESSIONS
WRONG, VOTES = (0.1, 0.3), (1, 3, 5, 9)
PREFERENCES = {"weather": "celsius", "cooking": "steps", "trains": "clock24", "orders": "order_id"}
ORDERS = 5
ECHO_SAMPLES = 14  # of 72 prompts: 1,008 replies


# -- cells ----------------------------------------------------------------------------------------------------------


def rate_cells() -> list[Cell]:
    """Every preset at every learning rate, short and long."""
    return [
        Cell(f"{rate_name(name, epochs, rate)}-{seed}", tuning,
             {"name": name, "options": options | BATCH | {"learning_rate": rate}, "seed": seed, "epochs": epochs})
        for epochs, seeds in TUNING_SEEDS.items()
        for name, options in PRESETS.items()
        for rate in LEARNING_RATES
        for seed in seeds
    ]  # fmt: skip


def rate_name(name: str, epochs: int, rate: float) -> str:
    return f"rate-{slug(name)}-{epochs}-{rate:g}"


def ends(rates: dict[str, JSON], name: str, epochs: int, rate: float) -> float:
    """Share of replies as wanted after a training at a learning rate, mean over the tuning seeds."""
    cells = (rates[f"{rate_name(name, epochs, rate)}-{seed}"] for seed in TUNING_SEEDS[epochs])
    return mean(mean_corrected(cell["passed"]) for cell in cells)


def tuned(rates: dict[str, JSON]) -> dict[str, float]:
    """preset -> the learning rate of its short trainings: the one with which they end best."""
    return {name: max(LEARNING_RATES, key=partial(ends, rates, name, SHORT)) for name in PRESETS}


def cells(rates: dict[str, float], seeds: Sequence[int]) -> list[Cell]:
    """Everything else; the short trainings each at its rate."""
    short = {name: preset | BATCH | {"learning_rate": rates[name]} for name, preset in PRESETS.items()}
    long = {name: preset | BATCH | {"learning_rate": LONG_RATE} for name, preset in PRESETS.items()}
    variants = {name: long[preset] | over for name, (preset, over) in VARIANTS.items()}
    best = short[DEFAULT]
    found = [
        Cell(f"short-{slug(name)}-{seed}", learning, {"name": name, "options": some, "seed": seed, "epochs": SHORT})
        for name, some in short.items()
        for seed in seeds
    ]
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
    """What the model does before any training."""
    return {"passed": passed(MODEL, seed)}


def tuning(work: Path, name: str, options: JSON, seed: int, epochs: int) -> JSON:
    """Shares passed after the last epoch, with few samples."""
    run = branch(work / "base", work / f"{rate_name(name, epochs, options['learning_rate'])}-{seed}")
    trained(run, MODEL, options, seed, epochs)
    numbers = {"passed": passed(final_model(run), seed, TUNING_SAMPLES)}
    rmtree(run)
    return numbers


def curve(work: Path, name: str, options: JSON, seed: int, epochs: int) -> JSON:
    """Shares passed after each epoch."""
    run = branch(work / "base", work / f"long-{slug(name)}-{seed}")
    trained(run, MODEL, options | {"keep_epochs": True}, seed, epochs)
    numbers = {"epochs": [passed(epoch_model(run, epoch), seed) for epoch in range(1, epochs + 1)]}
    rmtree(run)
    return numbers


def learning(work: Path, name: str, options: JSON, seed: int, epochs: int) -> JSON:
    """Shares passed after the last epoch, what the training cost, and what `opdkit eval` says of it."""
    run = branch(work / "base", work / f"short-{slug(name)}-{seed}")
    cost = trained(run, MODEL, options, seed, epochs)
    numbers = {"cost": cost, "scores": scores(run, seed)}
    rmtree(run)
    return numbers


def of_size(work: Path, sessions: int, options: JSON, seeds: Sequence[int]) -> JSON:
    """Short trainings on more or fewer sessions of the log."""
    base, shares = judged(work, sessions), []
    for seed in seeds:
        run = branch(base, work / f"size-{sessions}-{seed}")
        trained(run, MODEL, options, seed, SHORT)
        shares.append(passed(final_model(run), seed))
    return described(base) | {"passed": shares}


def echo(work: Path, options: JSON, seed: int) -> JSON:
    """`opdkit eval` with a thousand replies."""
    run = branch(work / "base", work / "echo")
    trained(run, MODEL, options, seed, SHORT)
    found = scores(run, seed, ECHO_SAMPLES)
    return {
        "scores": found,
        "replies": sum(r["sample"] > 0 and r["model"] == "after" for r in read_all(run, "replies")),
    }


# -- numbers --------------------------------------------------------------------------------------------------------


def mean_corrected(shares: dict[str, float]) -> float:
    """Mean share over the topics that users correct."""
    return mean(shares[domain] for domain in PREFERENCES)


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def described(run: Path) -> JSON:
    """The log and its targets, in numbers."""
    targets = list(read_all(run, "targets"))
    return {
        "opdkit": __version__,
        "turns": len(targets),
        "hinted": sum(row["hint"] is not None for row in targets),
        "rewards": {str(r): sum(row["reward"] == r for row in targets) for r in (-1, 0, 1)},
    }
