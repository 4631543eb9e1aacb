"""Hint checks: how many planted bad hints `opdkit teacher --check-hints` drops, and how many good ones with them.

    python -m tests.benchmarks.hints --judge FOLDER      # with the judge of tests/benchmarks/criterion_judge.py

The hints are those of a perfect judge of the sample logs. A fifth of them is replaced: by a hint of another topic, by
words without a meaning, or by something that the model cannot do. The sample model answers; `--judge` decides.
"""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.extract import stage as extract
from opdkit.store.joined_turns import LOGGED, joined_turns
from opdkit.store.part_writer import Stage
from opdkit.store.reading import part_count, read_all
from opdkit.store.tables import VERDICTS
from opdkit.teacher import stage as teacher
from opdkit.teacher.hint_checks import DROPPED

from .criterion_judge import NONSENSE, ROOT, TOPICS, hints_of

DATA = ROOT / "sample_data"
BAD = 0.2


def labels() -> dict[str, tuple[int, str | None]]:
    rows = [json.loads(line) for line in (DATA / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
    return {row["turn_id"]: (row["reward"], row["wanted"]) for row in rows}


def plant(run: Path, topics: Sequence[str], seed: int, limit: int | None = None) -> dict[str, str]:
    """Write a run whose verdicts are a perfect judge's, but for planted hints; return turn_id -> what was planted."""
    extract.run(ExtractConfig(run=run, logs=(str(DATA / "logs"),), shard="0/1"))
    rng, known = random.Random(seed), labels()
    by_style = {style.name: (topic, style) for topic in TOPICS for style in topic.styles if topic.name in topics}
    config = JudgeConfig(run=run, judge="rules", shard="0/1")
    planted, left = dict[str, str](), limit
    stage = Stage.open(config, "judge", [VERDICTS], parts=part_count(run, "extract"), upstream=["extract"])
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
                    out.rows("verdicts", [{
                        "turn_id": turn.turn_id, "hint_votes": [], "reward_votes": [], "reward": reward,
                        "reward_status": "ok", "reward_agreement": None, "hints": [hint] if hint else [],
                        "hint": hint, "hint_status": "ok" if hint else "none",
                    }])  # fmt: skip
    return planted


def measure(judge: Path, topics: Sequence[str], seed: int, samples: int, limit: int | None = None) -> dict[str, object]:
    """Return recall and precision of the hints that are dropped, with the counts behind them."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        planted = plant(run, topics, seed, limit)
        teacher.run(TeacherConfig(run=run, model=str(DATA / "model"), check_hints=samples, judge_model=str(judge),
                                  max_new_tokens=64, seed=seed, top_k=0, device="cpu", shard="0/1"))  # fmt: skip
        rows = list(read_all(run, "hint_checks"))
    dropped = {row["turn_id"] for row in rows if row["status"] in DROPPED}
    found = len(dropped & planted.keys())
    return {
        "topics": list(topics), "seed": seed, "samples": samples, "hints": len(rows), "planted": len(planted),
        "dropped": len(dropped), "found": found, "recall": found / len(planted), "precision": found / len(dropped),
        "missed": Counter(planted[row["turn_id"]] for row in rows if row["turn_id"] in planted.keys() - dropped),
        "dropped_good": Counter(row["status"] for row in rows if row["turn_id"] in dropped - planted.keys()),
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--judge", type=Path, required=True)
    parser.add_argument("--topics", nargs="+", default=["weather", "trains"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--samples", type=int, nargs="+", default=[8])
    options = parser.parse_args(words)
    for samples in options.samples:
        for seed in options.seeds:
            print(json.dumps(measure(options.judge, options.topics, seed, samples)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
