"""Hint checks: how many planted bad hints `opdkit teacher --check-hints` drops, and how many good hints with them.

    python -m tests.benchmarks.hints --errors 0 0.1 0.2      # a judge that knows the world, with these error rates
    python -m tests.benchmarks.hints --judge FOLDER          # the judge of tests/benchmarks/criterion_judge.py

The hints are those of a perfect judge of the sample logs. A fifth of them is replaced: by a hint of another topic, by
words without a meaning, or by something that the model cannot do. The sample model writes the replies.
"""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.extract import stage as extract
from opdkit.judge.criterion import FreshReply
from opdkit.judge.votes import Reward
from opdkit.store.dropped_hints import DROPPED
from opdkit.store.joined_turns import LOGGED, joined_turns
from opdkit.store.part_writer import Stage
from opdkit.store.reading import count_parts, read_all
from opdkit.store.stable_hash import stable_hash
from opdkit.store.tables import VERDICTS
from opdkit.teacher import hint_checks
from opdkit.teacher import stage as teacher

from .criterion_judge import NONSENSE, ROOT, TOPICS, hints_of, is_met

DATA = ROOT / "sample_data"
BAD = 0.2


def labels() -> dict[str, tuple[int, str | None]]:
    rows = [json.loads(line) for line in (DATA / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
    return {row["turn_id"]: (row["reward"], row["wanted"]) for row in rows}


def plant(run: Path, topics: Sequence[str], seed: int, limit: int | None = None) -> dict[str, str]:
    """Write a run with a perfect judge's verdicts except for planted hints; return turn_id -> kind of planted hint."""
    extract.run(ExtractConfig(run=run, logs=(str(DATA / "logs"),), shard="0/1"))
    rng, known = random.Random(seed), labels()
    by_style = {style.name: (topic, style) for topic in TOPICS for style in topic.styles if topic.name in topics}
    config = JudgeConfig(run=run, judge="rules", shard="0/1")
    planted, left = dict[str, str](), limit
    stage = Stage.open(config, "judge", [VERDICTS], parts=count_parts(run, "extract"), upstream=["extract"])
    for part in range(stage.parts):
        with stage.writing(part) as out:
            for turn in joined_turns(run, part, LOGGED, reviews={}):
                reward, wanted = known.get(turn.turn_id, (0, None))
                hint = None
                if wanted in by_style and turn.turn["trainable"] and left != 0:
                    left = left and left - 1
                    topic, style = by_style[wanted]
                    hint = rng.choice(style.hints)
                    if rng.random() < BAD:
                        planted[turn.turn_id] = kind = rng.choice(("other topic", "no meaning or not possible"))
                        other = rng.choice([t for t in TOPICS if t is not topic and hints_of(t)])
                        hint = rng.choice(hints_of(other) if kind == "other topic" else NONSENSE["planted"])
                if turn.turn["trainable"]:
                    out.add_rows("verdicts", [{
                        "turn_id": turn.turn_id, "hint_votes": [], "reward_votes": [], "reward": reward,
                        "reward_status": "ok", "reward_agreement": None, "hints": [hint] if hint else [],
                        "hint": hint, "hint_status": "ok" if hint else "none",
                    }])  # fmt: skip
    return planted


def judge_by_truth(errors: float) -> Callable[..., list[tuple[list[Any], Reward]]]:
    """Return a stand-in for `judge_replies` that knows the world; each vote is wrong with probability `errors`."""
    topics = {style.name: topic for topic in TOPICS for style in topic.styles}
    topic_of = {turn_id: topics[wanted] for turn_id, (_, wanted) in labels().items() if wanted}

    def judge_replies(_ask: Any, replies: Sequence[FreshReply], _texts: Any) -> list[tuple[list[Any], Reward]]:
        judged = []
        for reply in replies:
            turn_id = reply.prompt_id.partition(f":{reply.hint}:")[0]
            errs = stable_hash(reply.prompt_id, reply.seen, bits=32) < errors * 2**32
            met = is_met(topic_of[turn_id], str(reply.hint), reply.seen) != errs
            judged.append(([], Reward(1 if met else -1, "ok", 1.0)))
        return judged

    return judge_replies


def measure(
    judge: Path | float, topics: Sequence[str], seed: int, samples: int, limit: int | None = None
) -> dict[str, Any]:
    """Return recall and precision of the dropped hints, with the counts behind them.

    `judge`: the folder of a model, or the error rate of a judge that knows the world.
    """
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        run = Path(folder) / "run"
        planted = plant(run, topics, seed, limit)
        if isinstance(judge, float):
            patch.setattr(hint_checks, "judge_replies", judge_by_truth(judge))
            patch.setattr(hint_checks, "open_judge", lambda *_: None)
        model = str(DATA / "model" if isinstance(judge, float) else judge)
        teacher.run(TeacherConfig(run=run, model=str(DATA / "model"), check_hints=samples, judge_model=model,
                                  max_new_tokens=48, seed=seed, top_k=0, device="cpu", shard="0/1"))  # fmt: skip
        rows = list(read_all(run, "hint_checks"))
    dropped = {row["turn_id"] for row in rows if row["status"] in DROPPED}
    found = len(dropped & planted.keys())
    return {
        "judge": judge if isinstance(judge, float) else "model", "topics": list(topics), "seed": seed,
        "samples": samples, "hints": len(rows), "planted": len(planted), "dropped": len(dropped), "found": found,
        "recall": round(found / len(planted), 3), "precision": round(found / len(dropped), 3),
        "missed": Counter(planted[row["turn_id"]] for row in rows if row["turn_id"] in planted.keys() - dropped),
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--judge", type=Path)
    parser.add_argument("--errors", type=float, nargs="+", default=[])
    parser.add_argument("--topics", nargs="+", default=["weather", "cooking", "trains", "orders"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--samples", type=int, nargs="+", default=[8])
    options = parser.parse_args(words)
    for judge in [*options.errors, *([options.judge] if options.judge else [])]:
        for samples in options.samples:
            for seed in options.seeds:
                print(json.dumps(measure(judge, options.topics, seed, samples)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
