"""Forecasts compared with trainings: the gain that `opdkit forecast` expects, and the gain of the training.

The log is judged by the rules. The judge of fresh replies knows the world and errs in a share of its answers. The
training is the default, on hints that are tested as in the forecast. The student is the model that wrote the log, or a
model that was already trained on the log, from which less is to be expected.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from opdkit.commands import forecast
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import JSON
from opdkit.config.forecast import ForecastConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import OpdkitError
from opdkit.extract.stage import run as extract
from opdkit.judge.criterion import EMPTY, FreshReply
from opdkit.judge.stage import run as judge
from opdkit.judge.votes import Reward
from opdkit.store.stable_hash import stable_hash
from opdkit.teacher import hint_checks
from opdkit.teacher.stage import run as teach
from opdkit.train.stage import run as train

from ..learning.cells import Cell
from ..learning.runs import final_model
from . import Built, built_in
from .measure import measure_model
from .trainings import trained
from .world import passes

SAMPLES = 8


def judge_by_truth(built: Built, errors: float) -> Callable[..., list[tuple[list[Any], Reward]]]:
    """Return a stand-in for `judge_replies` that knows what the turn's user wished, and errs at the rate `errors`."""
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
            errs = stable_hash(reply.prompt_id, reply.seen, bits=32) < errors * 2**32
            judged.append(([], Reward(1 if verdict(reply) != errs else -1, "ok", 1.0) if reply.seen else EMPTY))
        return judged

    return judge_replies


def measure_forecast(work: Path, world: str, sessions: int, errors: float, seed: int, taught: float | None) -> JSON:
    """Return the forecast from the first `sessions` of a world's log, and the shares before and after the training.

    `taught`: rate of a training on the whole log that makes the student; None: the student is the world's model.
    """
    built = built_in(work, world)
    with trained(built, work, seed, TrainConfig.objective, taught) as model:
        run = work / "forecasts" / f"{world}-{sessions}-{taught}-{seed}"
        options: JSON = {"model": str(model), "device": "cpu", "max_new_tokens": built.world.max_new_tokens}
        extract(ExtractConfig(run=run, logs=(str(built.logs),), limit=sessions, shard="0/1"))
        judge(JudgeConfig(run=run, judge="rules", shard="0/1"))
        with (
            patch.multiple(hint_checks, judge_replies=judge_by_truth(built, errors), open_judge=lambda *_: None),
            patch.object(forecast, "judge_replies", judge_by_truth(built, errors)),
        ):
            expected = forecast.predict(ForecastConfig(run=run, seed=seed, **options))
            teach(TeacherConfig(run=run, check_hints=SAMPLES, judge_model=str(model), shard="0/1", **options))
        found: JSON = {"model": False, "before": measure_model(built, model, seed)}
        with suppress(OpdkitError):  # the training writes no model that is worse
            train(TrainConfig(run=run, model=str(model), seed=seed, device="cpu", overwrite=True))
            found |= {"model": True, **measure_model(built, final_model(run), seed)}
    return {name: expected[name] for name in ("gain", "low", "high", "go", "hinted_turns", "hints", "with_hint",
                                              "without_hint")} | found  # fmt: skip


def forecast_cell(world: str, sessions: int, errors: float, seed: int, taught: float | None = None) -> Cell:
    settings = {"world": world, "sessions": sessions, "errors": errors, "seed": seed, "taught": taught}
    student = "" if taught is None else f"-taught-{taught:g}"
    return Cell(f"forecast-{world}-{sessions}-{errors:g}-{seed}{student}", measure_forecast, settings)
