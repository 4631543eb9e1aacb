"""Judge that is wrong at a known rate, in place of the local judge: it shows how many errors several votes repair.

A right vote is what the user of the logs meant (`sample_data/labels.jsonl`). A wrong reward vote is one of the other
two rewards. If a hint is due, a wrong vote is with equal probability no hint or a hint for another style; if no hint is
due, it is a hint for any style of the topic.
"""

import importlib.util
import json
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

from opdkit.config.fields import JSON, parse_pairs
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.judge.judges import MODEL_JUDGES
from opdkit.judge.kept_answers import KeptAnswers
from opdkit.judge.stage import run as judge
from opdkit.judge.votes import Answer, Question, choose_reward
from opdkit.store.reading import read_all
from opdkit.teacher.stage import run as teach

from .runs import DATA, MODEL, SESSIONS, base_of, branch, final_model, passed, trained

REWARDS = (-1, 0, 1)


@cache
def world() -> Any:
    """Load sample_data/world.py: the topics, and the wording of a hint for each style."""
    spec = importlib.util.spec_from_file_location("world", DATA / "world.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def labels() -> dict[str, JSON]:
    """Return turn_id -> the labels of a perfect judge."""
    rows = map(json.loads, (DATA / "labels.jsonl").read_text(encoding="utf-8").splitlines())
    return {row["turn_id"]: row for row in rows}


# -- the judge ------------------------------------------------------------------------------------------------------


class NoisyJudge:
    """Judge for `opdkit judge` that is wrong at the rate of `--template-arg wrong=RATE`."""

    def __init__(self, config: JudgeConfig, _folder: Path | None = None) -> None:
        self.config, self.rate = config, float(parse_pairs(config.template_arg, "")["wrong"])
        self.truth, self.topics = labels(), topics_of(config.run)

    def ask(self, questions: Sequence[Question], kept: KeptAnswers | None = None) -> list[list[Answer]]:
        """Return `--votes` answers to each question."""
        return [
            [
                Answer(vote(q.name, self.truth[q.turn_id], self.topics[q.turn_id], self.rate,
                            random.Random(f"{self.config.seed}:{q.turn_id}:{q.name}:{k}")), "stop")
                for k in range(self.config.votes)
            ]
            for q in questions
        ]  # fmt: skip


def vote(question: str, truth: JSON, topic: Any, rate: float, rng: random.Random) -> str:
    """Return the text of one vote, which is wrong with probability `rate`."""
    wrong = rng.random() < rate
    if question == "reward":
        others = [r for r in REWARDS if r != truth["reward"]]
        return f"\\boxed{{{rng.choice(others) if wrong else truth['reward']}}}"
    wanted = truth["wanted"]
    if wrong:
        silent = wanted is not None and rng.random() < 0.5
        others = [s.name for s in topic.styles if s.hints and s.name != wanted]
        wanted = None if silent or not others else rng.choice(others)
    if wanted is None:
        return "\\boxed{-1}"
    return f"\\boxed{{1}}\n[HINT_START]{rng.choice(topic.style(wanted).hints)}[HINT_END]"


def topics_of(run: Path) -> dict[str, Any]:
    """Return turn_id -> the topic of the last request before the turn."""
    requests = {r.format(i): t for t in world().TOPICS for r in t.requests for i in t.items}
    messages = {s["session_id"]: s["messages"] for s in read_all(run, "sessions")}
    found = {}
    for turn in read_all(run, "turns"):
        before = [m["content"] or "" for m in messages[turn["session_id"]][: turn["message_index"]]]
        said = next(text for text in reversed(before) if any(r in text for r in requests))
        found[turn["turn_id"]] = next(t for r, t in requests.items() if r in said)
    return found


# -- what the noise does --------------------------------------------------------------------------------------------


def noisy(
    work: Path,
    wrong: float,
    votes: int,
    options: JSON,
    seed: int,
    epochs: int,
    sessions: int = SESSIONS,
    hint_select: str = "consensus",
) -> JSON:
    """Train on `votes` votes of a noisy judge; return the shares of right rewards and hints, and the accuracy."""
    run = branch(base_of(work, sessions), work / f"noise-{hint_select}-{wrong}-{votes}-{seed}", ("extract",))
    with patch.dict(MODEL_JUDGES, {"local": f"{__name__}:NoisyJudge"}):
        judge(JudgeConfig(run=run, judge="local", judge_model=str(MODEL), votes=votes, seed=seed, limit=sessions,
                          hint_select=hint_select, template_arg=(f"wrong={wrong}",)))  # fmt: skip
    numbers = judged_right(run)
    teach(TeacherConfig(run=run, model=str(MODEL)))
    trained(run, MODEL, options, seed, epochs)
    return numbers | {"passed": passed(final_model(run), seed)}


def judged_right(run: Path) -> JSON:
    """Return the shares of rewards and of hints that agree with a perfect judge."""
    truth, right = labels(), right_hints(run)
    rewards, hints = Counter[bool](), Counter[bool]()
    for verdict in read_all(run, "verdicts"):
        rewards[verdict["reward"] == truth[verdict["turn_id"]]["reward"]] += 1
        hints[verdict["hint"] in right[verdict["turn_id"]]] += 1
    return {"rewards_right": rewards[True] / rewards.total(), "hints_right": hints[True] / hints.total()}


def right_hints(run: Path) -> dict[str, tuple[str | None, ...]]:
    """Return turn_id -> a perfect judge's hints: every wording of what the user wants; None alone if no hint is due."""
    topics = topics_of(run)
    return {turn: topics[turn].style(label["wanted"]).hints if label["wanted"] else (None,)
            for turn, label in labels().items()}  # fmt: skip


def exact_reward_accuracy(wrong: float, votes: int) -> float:
    """Return the exact probability that `votes` votes give the right reward, if all true rewards are equally likely."""
    total = 0.0
    for truth in REWARDS:
        chance = {r: 1 - wrong if r == truth else wrong / 2 for r in REWARDS}
        for scores in _outcomes(votes):
            if choose_reward(scores).reward == truth:
                total += _ways(scores) * prod(chance[s] for s in scores)
    return total / len(REWARDS)


def _outcomes(votes: int) -> list[tuple[int, ...]]:
    """Return every combination of votes, regardless of their order."""
    counts = product(range(votes + 1), repeat=2)
    return [(-1,) * a + (0,) * b + (1,) * (votes - a - b) for a, b in counts if a + b <= votes]


def _ways(scores: tuple[int, ...]) -> int:
    """Return the number of orders in which the votes can come."""
    ways, rest = 1, len(scores)
    for count in Counter(scores).values():
        for k in range(count):
            ways = ways * (rest - k) // (k + 1)
        rest -= count
    return ways
