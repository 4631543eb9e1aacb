"""Value of people's decisions: edits compared with corrections, thumbs compared with judged rewards.

Each way trains on its own log, made from the log of a world:

    edits        20 corrected replies, each as its user edited it, and all replies that nobody corrected
    corrections  three times as many corrected replies with the correction, and the same uncorrected replies
    thumbs       the whole log: a thumb at every reply that was praised or complained about, and no judge
    judged       the whole log: the rewards of the rules judge, without its hints

For edits and corrections, every session is cut after the reaction to its first reply (an edited reply: after the
reply). They train with the default objective, thumbs and judged rewards with `--objective binary`.
"""

import json
import random
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

from opdkit import Run
from opdkit.commands.show.tokens import level
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import JSON
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import OpdkitError
from opdkit.evaluate.checks import CORRECTED, UNCORRECTED
from opdkit.extract.stage import run as extract
from opdkit.judge import rules
from opdkit.judge.reply_in_context import ReplyInContext
from opdkit.model.load import load_tokenizer
from opdkit.store.reading import read_all
from opdkit.teacher.stage import run as teach
from opdkit.train.stage import run as train

from ..learning.cells import Cell
from ..learning.runs import final_model
from . import Built, built_in
from .measure import measure_model

DECIDED = ("habit", "format", "groups", "other", "language", "privacy")  # worlds of plain text, like chats
EDITS, TIMES = 20, 3
LOGS = {"edits": TrainConfig.objective, "corrections": TrainConfig.objective, "thumbs": "binary", "judged": "binary"}


def decided_log(built: Built, log: str, seed: int) -> list[JSON]:
    """Return the sessions of one of the LOGS; `seed` draws which of the corrected replies it has."""
    sessions = [json.loads(line) for line in (built.logs / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    labels = {row["turn_id"]: row for row in map(json.loads, built.labels.read_text(encoding="utf-8").splitlines())}
    corrected, others = list[JSON](), list[JSON]()
    for number, session in enumerate(sessions, 1):
        messages = session["messages"]
        of_turn = {index: labels[name] for index in range(len(messages)) if (name := f"log:{number}:{index}") in labels}
        if log == "thumbs":
            for index in (index for index, label in of_turn.items() if label["reward"]):
                messages[index] |= {"decision": {"rating": of_turn[index]["reward"]}}
        index = next(k for k, one in enumerate(messages) if one["role"] == "assistant")
        if log in ("thumbs", "judged") or index not in of_turn:
            continue
        wish = of_turn[index]["wish"]
        cut = session | {"messages": messages[: index + 2]}
        if log == "edits" and wish:
            edit = {"decision": {"edited": wanted_reply(built, messages[index - 1]["content"], wish)}}
            cut = session | {"messages": [*messages[:index], messages[index] | edit]}
        (corrected if wish else others).append(cut)
    if log in ("thumbs", "judged"):
        return sessions
    drawn = random.Random(f"decided:{seed}").sample(corrected, EDITS * TIMES)
    return others + (drawn[:EDITS] if log == "edits" else drawn)


def wanted_reply(built: Built, request: str, wish: str) -> str:
    """Return the reply that a user wanted for a request."""
    return next(topic.style(wish).reply(item) for topic in built.world.topics for item in topic.items
                for words in topic.requests if words.format(item) in request)  # fmt: skip


def measure_decided(work: Path, world: str, log: str, seed: int) -> JSON:
    """Return the shares passed after training on one of the LOGS; for edits, also how many wrong tokens are marked."""
    built, here = built_in(work, world), work / "decided" / f"{world}-{log}-{seed}"
    rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    file, run = here / "log.jsonl", here / "run"
    rows = decided_log(built, log, seed)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    extract(ExtractConfig(run=run, logs=(str(file),)))
    Run(run).judge(judge={"thumbs": nothing, "judged": reward_alone}.get(log, "rules"))
    teach(TeacherConfig(run=run, model=str(built.model)))
    found: JSON = {"model": False}
    with suppress(OpdkitError):  # the training wrote no model
        train(TrainConfig(run=run, model=str(built.model), seed=seed, objective=LOGS[log], device="cpu",
                          checkpoint_every=0))  # fmt: skip
        found = {"model": True, **measure_model(built, final_model(run), seed)}
    verdicts = list(read_all(run, "verdicts"))
    found |= {"replies": len(rows), "hints": sum(bool(v["hint"]) for v in verdicts)}
    if log == "edits":
        found |= blamed(built, run)
    rmtree(here)
    return {name: value for name, value in found.items() if name in ("model", CORRECTED, UNCORRECTED, "replies",
                                                                     "hints", "edited", "blamed")}  # fmt: skip


def nothing(prompt: list[JSON], reply: JSON, next_state: list[JSON]) -> tuple[int, None]:
    """Return reward 0 and no hint: a thumb is a reward without a vote."""
    return 0, None


def reward_alone(prompt: list[JSON], reply: JSON, next_state: list[JSON]) -> tuple[int, None]:
    """Return the reward of the rules judge, without its hint."""
    return rules.judge(ReplyInContext([*prompt, reply], len(prompt), next_state)).reward, None


def blamed(built: Built, run: Path) -> JSON:
    """Return the number of edited replies, and the number whose first wrong token is marked as less likely.

    The first wrong token is the first token that differs from the user's reply at its position.
    """
    tokenizer = load_tokenizer(str(built.model))
    edits = {row["turn_id"]: row["decision"]["edited"] for row in read_all(run, "turns") if row["decision"]}
    marked = 0
    for turn_id, edit in edits.items():
        tokens = Run(run).show(turn_id)["targets"][0]["tokens"]
        wanted = tokenizer(edit, add_special_tokens=False)["input_ids"]
        wrong = next(n for n, token in enumerate(tokens) if n == len(wanted) or token["id"] != wanted[n])
        marked += level(tokens[wrong]) < 0
    return {"edited": len(edits), "blamed": marked}


def decided_cell(world: str, log: str, seed: int) -> Cell:
    return Cell(f"decided-{world}-{log}-{seed}", measure_decided, {"world": world, "log": log, "seed": seed})
