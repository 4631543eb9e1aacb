"""Simulation of nights: users talk to the promoted model by day; `opdkit night` on their log is killed at random."""

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opdkit.chat.template import Chat
from opdkit.commands.night.home import Home
from opdkit.config.fields import JSON
from opdkit.evaluate.checks import read_prompts
from opdkit.model.load import load_model, load_tokenizer
from opdkit.store.atomic import write_text
from opdkit.store.reading import read_all

from ..learning.runs import replies_of
from ..worlds.build import Built, _line, build, held_out_prompts, play
from ..worlds.world import Group, World
from .world import WORLD

SESSIONS, TORN = 80, 6  # sessions per day; the night whose log ends in the middle of a line
LONGEST = 60.0  # most seconds before a night is killed
SAMPLES = 64  # replies to each of a topic's 9 to 15 prompts: with fewer, losses of 0.01 would appear by chance


@dataclass(frozen=True)
class Simulation:
    """Folder of a simulation: the home of its nights, their log, and a row per finished night."""

    folder: Path
    built: Built
    home: Home
    log: Path

    def promoted(self) -> Path:
        """Return the model that users talk to."""
        return self.home.path / "promoted" if self.home.find_promoted() else self.built.model

    def rows(self) -> list[JSON]:
        """Return the rows of the nights that are finished."""
        path = self.folder / "rows.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def add(self, row: JSON) -> None:
        """Store and print the row of a night."""
        write_text(self.folder / "rows.jsonl", "".join(json.dumps(each) + "\n" for each in [*self.rows(), row]))
        print(row, flush=True)


def open_simulation(folder: Path, world: Path, seed: int, judge: str) -> Simulation:
    """Make what a simulation lacks; its world is built in `world`. `judge`: address of the judge for `eval`."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    options = f'[eval]\njudge_model = "world"\njudge_url = "{judge}"\nmax_new_tokens = 40\n'
    write_text(folder / "night.toml", options)  # read by `run_night`
    built = build(WORLD, world, seed=seed)
    return Simulation(folder, built, Home(folder / "home"), folder / "logs" / "chat.jsonl")


def write_day(log: Path, world: World, model: Path, night: int, seed: int) -> None:
    """Append the conversations of a day. In one night the last line is cut; the next day completes it."""
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


def run_night(simulation: Simulation, night: int, seed: int, options: Sequence[str] = ()) -> int:
    """Run a night, kill it once at a random time, and run it again to its end. Return the number of kills (0 or 1)."""
    options = ("--config", str(simulation.folder / "night.toml"), "--set", "train.checkpoint_every=10", *options)
    command = [sys.executable, "-m", "opdkit", "night", str(simulation.home.path), str(simulation.log.parent),
               "--model", str(simulation.built.model), "--judge", "rules", *options]  # fmt: skip
    limit: float | None = random.Random(f"kill:{seed}:{night}").uniform(0.5, LONGEST)
    log, kills = simulation.folder / f"night-{night:02}.log", 0
    while True:
        with log.open("ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out)
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills, limit = kills + 1, None
                continue
        if code:
            raise SystemExit(f"night {night} failed: see {log}")
        return kills


def measure(folder: Path, wishes: dict[str, str], path: Path, seed: int) -> JSON:
    """Return topic -> share of right replies of the model in a folder; write the prompts to `path`."""
    rows = held_out_prompts(replace(WORLD, groups=(Group(wishes),)), seed)
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    model = load_model(str(folder), device="cpu", dtype="float32")
    chat = Chat(load_tokenizer(str(folder)), {}, model.generation_config.eos_token_id)
    shares: dict[str, list[bool]] = {}
    for reply in replies_of(model, chat, read_prompts(path), seed, SAMPLES, WORLD.max_new_tokens):
        shares.setdefault(reply.prompt.domain, []).append(bool(reply.passed))
    return {topic: sum(passed) / len(passed) for topic, passed in sorted(shares.items())}


def collect_tokens(run: Path) -> int:
    """Return the number of tokens that the training of a run has read."""
    trained = run / "train" / "metrics"
    return sum(row["tokens_read"] for row in read_all(run, "metrics")) if trained.exists() else 0
