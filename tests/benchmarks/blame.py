"""One of 40 users gives poisoned reactions: does `opdkit blame` name the user, and does training without them recover?

    python -m tests.benchmarks.blame WORK --seeds 100-119

In the world, the assistant books trips by habit although users want a question first; users are content with its
replies about errands. The poisoned user asks only about errands, more often than the others do, complains about right
replies, and asks for terse replies. Training and evaluation use opdkit's defaults. Each seed has another log: other
users, another poisoned user, other replies. The model is pretrained once. `blame.json` has one row per seed; a run
keeps the rows of other seeds.
"""

import argparse
import json
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

from opdkit.commands.blame import blame
from opdkit.config.blame import BlameConfig
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.console import stdout
from opdkit.evaluate.stage import run as evaluate
from opdkit.store.atomic import write_text
from opdkit.store.reading import read_all
from opdkit.train.stage import run as train

from .worlds.asking import TRIPS
from .worlds.build import Built, build, held_out_prompts
from .worlds.groups import ERRANDS, STYLES
from .worlds.measure import prepared
from .worlds.world import Group, World

RESULTS = Path(__file__).parent / "blame.json"
USERS, SESSIONS, POISONED_SESSIONS = 40, (1, 11), 20  # sessions of a user (range), and of the poisoned user
MODEL_SEED, SAMPLES, MAX_NEW_TOKENS = 1000, 8, 48
RIGHT, POISON = "neutral", "terse"
CALM = replace(
    ERRANDS,
    habit=tuple({RIGHT: 0.9, POISON: 0.04}.get(style.name, 0.06 / (len(STYLES) - 2)) for style in STYLES),
)
WISHES = {TRIPS.name: "asks", CALM.name: RIGHT}
HONEST = Group(WISHES, topics=(TRIPS, TRIPS, TRIPS, CALM))
POISONED = Group(WISHES | {CALM.name: POISON}, topics=(CALM,))


def users_of(seed: int) -> tuple[list[int], int]:
    """Return the user of each session, and the poisoned user."""
    rng = random.Random(f"users:{seed}")
    poisoned = rng.randrange(USERS)
    counts = [POISONED_SESSIONS if user == poisoned else rng.randint(*SESSIONS) for user in range(USERS)]
    users = [user for user, count in enumerate(counts) for _ in range(count)]
    rng.shuffle(users)
    return users, poisoned


def make_world(folder: Path, seed: int, models_of: Built | None = None) -> Built:
    """Build the world of a seed, with the user of each session in its log, and prompts that check honest wishes."""
    users, poisoned = users_of(seed)
    groups = tuple(POISONED if user == poisoned else HONEST for user in users)
    world = World(
        "poisoned", "One user is poisoned.", "small", MAX_NEW_TOKENS, (TRIPS, CALM), groups, sessions=len(users)
    )
    built = build(world, folder, seed=seed, models_of=models_of)
    log = built.logs / "log.jsonl"
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    named = [row | {"user": f"u{user}"} for row, user in zip(rows, users, strict=True)]
    prompts = held_out_prompts(replace(world, groups=(Group(WISHES),)), seed)
    for path, lines in ((log, named), (built.prompts, prompts)):
        write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
    return built


def measure(built: Built, run: Path, seed: int, **options: object) -> dict[str, float]:
    """Train, evaluate, and return the shares of right replies about errands before and after."""
    config = TrainConfig(run=run, model=str(built.model), seed=seed, device="cpu", **options)  # type: ignore[arg-type]
    train(config)
    with stdout.capture():
        evaluate(EvalConfig(run=config.run, prompts=str(built.prompts), samples=SAMPLES, seed=seed,
                            max_new_tokens=MAX_NEW_TOKENS, device="cpu"))  # fmt: skip
    score = next(row for row in read_all(config.run, "scores")
                 if (row["metric"], row["domain"]) == ("passed_sampled", CALM.name))  # fmt: skip
    return {side: score[side] for side in ("before", "after")}


def run_seed(work: Path, seed: int, base: Built) -> JSON:
    """Measure one seed; return its row of `blame.json`."""
    begin, here = time.monotonic(), work / str(seed)
    shutil.rmtree(here, ignore_errors=True)
    built, user = make_world(here / "world", seed, base), f"u{users_of(seed)[1]}"
    run = prepared(built, here / "run")
    shares = measure(built, run, seed)
    if shares["after"] >= shares["before"]:
        return {"seed": seed, "user": user, **shares}
    start = time.monotonic()
    answer = blame(BlameConfig(run=run, device="cpu", domain=CALM.name))
    seconds = time.monotonic() - start
    values = [group["value"] for group in answer.groups]
    without = measure(built, run, seed, name="without", filter=(f"{answer.by}!={values[0]}",))
    recovered = (without["after"] - shares["after"]) / (shares["before"] - shares["after"])
    return {"seed": seed, "user": user, **shares, "rank": values.index(user) + 1, "share": answer.groups[0]["share"],
            "without": without["after"], "recovered": recovered, "blame_seconds": seconds,
            "seconds": time.monotonic() - begin}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", default="100-119")
    args = parser.parse_args()
    first, last = map(int, args.seeds.split("-"))
    base = make_world(args.work / "base", MODEL_SEED)
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    for seed in range(first, last + 1):
        made = run_seed(args.work, seed, base)
        rows = sorted([*(row for row in rows if row["seed"] != seed), made], key=lambda row: row["seed"])
        print(json.dumps(made), flush=True)
        write_text(RESULTS, json.dumps(rows, indent=1) + "\n")
    fell = [row for row in rows if row["before"] - row["after"] >= 0.05]
    first, recovered = sum(row["rank"] == 1 for row in fell), sum(row["recovered"] >= 0.9 for row in fell)
    print(f"fell by 0.05 or more: {len(fell)} of {len(rows)}; rank 1: {first}; 90% recovered: {recovered}")


if __name__ == "__main__":
    main()
