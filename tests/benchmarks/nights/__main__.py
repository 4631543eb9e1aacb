"""Thirty nights on a log that grows, each killed at a random place.

    python -m tests.benchmarks.nights

Each day the promoted model writes new conversations with users, three of whose wishes change in these weeks; three days
are quiet, and one night the log ends in the middle of a line. At the end a model is trained from scratch on everything.
A simulation that was stopped begins again in another folder.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from opdkit.chat.template import Chat
from opdkit.commands.night.home import Home
from opdkit.config.fields import JSON
from opdkit.evaluate.checks import read_prompts
from opdkit.model.load import load_model, load_tokenizer
from opdkit.store.atomic import write_text
from opdkit.store.reading import read_all

from ..learning.runs import replies_of
from ..pairs import RESULTS, save_rows
from ..worlds.build import _line, build, held_out_prompts, play
from ..worlds.world import Group
from .judge import serving
from .world import QUIET, WORLD, wishes_of

NIGHTS, SESSIONS, TORN = 30, 80, 6  # TORN: the night whose log ends in the middle of a line
LONGEST = 60.0  # seconds before the kill of a night, at most
SAMPLES = 4


def simulate(work: Path, nights: int, seed: int, judge: str) -> list[JSON]:
    """Return a row per night; nights that were simulated before are not repeated. `judge`: its address."""
    write_config(work, judge)
    built = build(WORLD, work / "world", seed=seed)
    home, log, rows = Home(work / "home"), work / "logs" / "chat.jsonl", work / "rows.jsonl"
    log.parent.mkdir(exist_ok=True)
    done = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    for night in range(len(done) + 1, nights + 1):
        wishes = wishes_of(night)
        model = home.path / "promoted" if home.promoted() else built.model
        if night not in QUIET:
            write_day(log, replace(WORLD, sessions=SESSIONS, groups=(Group(wishes),)), model, night, seed)
        start = time.monotonic()
        kills = run_night(home, log.parent, built.model, night, seed)
        seconds = time.monotonic() - start
        row = {"night": night, "kills": kills, "promoted": home.promoted(), "seconds": seconds,
               **accuracy(home, built.model, wishes, seed)}  # fmt: skip
        if night not in QUIET:
            made = home.nights()[-1]
            row |= {"decision": made.record["decision"], "turned": made.record.get("turned", []),
                    "sentence": made.record["sentence"], "tokens": tokens_of(made.folder)}  # fmt: skip
        with rows.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(row, flush=True)
        done.append(row)
    return done


def write_config(folder: Path, judge: str) -> None:
    """Write night.toml, which `run_night` reads, beside a home. `judge`: its address."""
    write_text(folder / "night.toml", f'[eval]\njudge_model = "world"\njudge_url = "{judge}"\nmax_new_tokens = 40\n')


def write_day(log: Path, world, model: Path, night: int, seed: int) -> None:  # type: ignore[no-untyped-def]
    """Append the conversations of a day. One night the last line is cut in the middle, and completed the day after."""
    rest = log.with_suffix(".rest")
    if rest.exists():
        with log.open("a") as out:
            out.write(rest.read_text())
        rest.unlink()
    sessions = play(world, model, 0.0, 1000 * seed + night)
    text = "".join(json.dumps(_line(messages, k, world)) + "\n" for k, (messages, _) in enumerate(sessions))
    if night == TORN:
        rest.write_text(text[-100:])
        text = text[:-100]
    with log.open("a") as out:
        out.write(text)


def run_night(home: Home, logs: Path, model: Path, night: int, seed: int, options: Sequence[str] = ()) -> int:
    """Run a night and kill it at a random time, until it is done. Return how often it was killed."""
    command = [sys.executable, "-m", "opdkit", "night", str(home.path), str(logs), "--model", str(model),
               "--judge", "rules", "--config", str(home.path.parent / "night.toml"),
               "--set", "train.checkpoint_every=10", *options]  # fmt: skip
    limit: float | None = random.Random(f"kill:{seed}:{night}").uniform(0.5, LONGEST)
    kills = 0
    while True:
        with (home.path.parent / f"night-{night:02}.log").open("ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out)
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills, limit = kills + 1, None
                continue
        if code:
            raise SystemExit(f"night {night} failed: see {home.path.parent}/night-{night:02}.log")
        return kills


def accuracy(home: Home, model: Path, wishes: dict[str, str], seed: int) -> JSON:
    """Return the share of right replies of the promoted model to held-out requests, by topic."""
    folder = home.path / "promoted" if home.promoted() else model
    return {"right": measure(folder, wishes, home.path.parent / "prompts.jsonl", seed)}


def measure(folder: Path, wishes: dict[str, str], path: Path, seed: int) -> JSON:
    """Return topic -> share of right replies of a model."""
    rows = held_out_prompts(replace(WORLD, groups=(Group(wishes),)), seed)
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    model = load_model(str(folder), device="cpu", dtype="float32")
    chat = Chat(load_tokenizer(str(folder)), {}, model.generation_config.eos_token_id)
    shares: dict[str, list[bool]] = {}
    for reply in replies_of(model, chat, read_prompts(path), seed, SAMPLES, WORLD.max_new_tokens):
        shares.setdefault(reply.prompt.domain, []).append(bool(reply.passed))
    return {topic: sum(passed) / len(passed) for topic, passed in sorted(shares.items())}


def train_from_scratch(work: Path, seed: int, nights: int) -> JSON:
    """Return what a training of the first model on the whole log reaches, by today's wishes, and the tokens it read."""
    run, model = work / "scratch", work / "world" / "model"
    command = [sys.executable, "-m", "opdkit", "run", str(run), str(work / "logs"), "--model", str(model), "--judge",
               "rules"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    right = measure(run / "train" / "model", wishes_of(nights), work / "prompts.jsonl", seed)
    return {"night": "from scratch", "right": right, "tokens": tokens_of(run)}


def tokens_of(run: Path) -> int:
    """Return the tokens that the training of a run has read."""
    trained = run / "train" / "metrics"
    return sum(row["tokens_read"] for row in read_all(run, "metrics")) if trained.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("/tmp/opdkit-nights"))
    parser.add_argument("--nights", type=int, default=NIGHTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    with serving() as judge:
        rows = simulate(options.work, options.nights, options.seed, judge)
    rows.append(train_from_scratch(options.work, options.seed, options.nights))
    print(save_rows("nights", rows, options.results))


if __name__ == "__main__":
    main()
