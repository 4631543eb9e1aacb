"""Forecasts against trainings: gains that `opdkit forecast` expects, and those that a training then has.

    python -m tests.benchmarks.forecast FOLDER --worlds habit tools --sessions 20 200

The judge of the replies knows the world and errs in a share of its answers (`--errors`); the log is judged by the
rules. The training is the default, for two epochs; its hints were tested as the forecast does.
"""

import argparse
import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opdkit.commands import forecast
from opdkit.config.extract import ExtractConfig
from opdkit.config.forecast import ForecastConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import OpdkitError
from opdkit.extract.stage import run as extract
from opdkit.judge.criterion import EMPTY, FreshReply
from opdkit.judge.stage import run as judge
from opdkit.judge.votes import Reward
from opdkit.teacher import hint_checks
from opdkit.teacher.stage import run as teach
from opdkit.train.stage import run as train

from .worlds import WORLDS, Built, build
from .worlds.measure import accuracy
from .worlds.world import passes


def judge_by_truth(built: Built, errors: float) -> Callable[..., list[tuple[list[Any], Reward]]]:
    """Return a stand-in for `judge_replies`: whether a reply is what the turn's user wished, but for some errors."""
    rows = map(json.loads, built.labels.read_text(encoding="utf-8").splitlines())
    wishes = {row["turn_id"]: row["wish"] for row in rows}

    def verdict(reply: FreshReply) -> bool:
        wish = wishes.get(":".join(reply.prompt_id.split(":")[:3]))
        users = [message["content"] or "" for message in reply.messages if message["role"] == "user"]
        for text in reversed(users):  # the last request: a correction names no item
            for topic in built.world.topics:
                for item in sorted(topic.items, key=len, reverse=True):
                    if item in text:
                        styles = [style.name for style in topic.styles]
                        return wish in styles and passes(topic, item, str(wish), reply.seen)
        return False

    def judge_replies(_ask: Any, replies: Sequence[FreshReply], _texts: Any) -> list[tuple[list[Any], Reward]]:
        judged = []
        for reply in replies:
            digest = hashlib.sha256(f"{reply.prompt_id}:{reply.seen}".encode()).digest()
            errs = int.from_bytes(digest[:4]) < errors * 2**32
            judged.append(([], Reward(1 if verdict(reply) != errs else -1, "ok", 1.0) if reply.seen else EMPTY))
        return judged

    return judge_replies


def predict(built: Built, run: Path, errors: float) -> dict[str, Any]:
    """Return the forecast of a judged run."""
    hint_checks.judge_replies = forecast.judge_replies = judge_by_truth(built, errors)  # type: ignore[assignment]
    hint_checks.open_judge = lambda *_: None  # type: ignore[assignment, return-value]
    tokens = built.world.max_new_tokens
    return forecast.predict(ForecastConfig(run=run, model=str(built.model), max_new_tokens=tokens, device="cpu"))


def measure(built: Built, run: Path, seed: int = 0) -> dict[str, Any]:
    """Return the scores before and after training."""
    world = built.world
    teach(TeacherConfig(run=run, model=str(built.model), check_hints=8, max_new_tokens=world.max_new_tokens,
                        judge_model=str(built.model), device="cpu", shard="0/1"))  # fmt: skip
    before = accuracy(built.model, built.prompts, seed, world.samples, world.max_new_tokens)
    after = before
    with contextlib.suppress(OpdkitError):  # it hands out no model that is worse
        train(TrainConfig(run=run, model=str(built.model), epochs=2, overwrite=True, device="cpu"))
        after = accuracy(run / "train/model", built.prompts, seed, world.samples, world.max_new_tokens)
    return {"before": before, "after": after, "gain": after["corrected"] - before["corrected"]}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", type=Path, help="folder of worlds that were built, NAME-0, whose models are used")
    parser.add_argument("--worlds", nargs="+", default=[name for name, world in WORLDS.items() if not world.aside])
    parser.add_argument("--sessions", type=int, nargs="+", default=[20, 200])
    parser.add_argument("--irrelevant", type=float, default=0.0)
    parser.add_argument("--errors", type=float, default=0.1)
    options = parser.parse_args(words)
    for name in options.worlds:
        models = Built(WORLDS[name], options.models / f"{name}-0") if options.models else None
        folder = options.folder / f"{name}-{options.irrelevant}"
        built = build(WORLDS[name], folder, irrelevant=options.irrelevant, models_of=models)
        for sessions in options.sessions:
            run, cell = built.folder / f"run-{sessions}", built.folder / f"default-{sessions}.json"
            extract(ExtractConfig(run=run, logs=(str(built.logs),), limit=sessions, shard="0/1"))
            judge(JudgeConfig(run=run, judge="rules", shard="0/1"))
            expected = predict(built, run, options.errors)
            if not cell.exists():
                cell.write_text(json.dumps(measure(built, run)) + "\n", encoding="utf-8")
            measured = json.loads(cell.read_text(encoding="utf-8"))
            row = {"world": name, "irrelevant": options.irrelevant, "sessions": sessions, "errors": options.errors}
            print(json.dumps(row | measured | {"forecast": expected}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
