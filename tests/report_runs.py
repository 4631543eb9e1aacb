"""Runs for tests of the report: one of many turns, and one in which every text of every table is an attack."""

import json
import random
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sample_world import MODEL

from opdkit.config.evaluate import EvalConfig
from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.store.part_writer import Stage
from opdkit.store.plans import identify_model
from opdkit.store.tables import METRICS, REJECTED, REPLIES, SCORES, SESSIONS, TARGETS, TURNS, VERDICTS

Row = dict[str, Any]
TURNS_A_SESSION = 4
PER_PART = 2_500


def large_run(run: Path, turns: int, tokens: int = 80, seed: int = 0) -> Path:
    """Write a run of `turns` judged and scored turns, whose texts are random words."""
    draw = random.Random(seed)
    vocabulary = ["".join(draw.choices("aabcdeeefghiiklmnoooprrsttuvwyz", k=draw.randint(2, 9))) for _ in range(5_000)]
    numbers = np.random.default_rng(seed)
    drawn = cycle(numbers.integers(0, len(vocabulary), 1_000_003).tolist())  # a prime: repeats never align

    def words(count: int) -> str:
        return " ".join([vocabulary[next(drawn)] for _ in range(count)]) + "."

    stages = _open(run, parts=-(-turns // PER_PART))
    names = [f"log-{n % 3}:{n}" for n in range(-(-turns // TURNS_A_SESSION))]
    for part in range(stages["extract"].parts):
        mine = names[part * PER_PART // TURNS_A_SESSION : (part + 1) * PER_PART // TURNS_A_SESSION]
        sessions = [_conversation(name, words) for name in mine]
        rows = [turn_row(s["session_id"], 2 * n + 1) for s in sessions for n in range(TURNS_A_SESSION)]
        with stages["extract"].writing(part) as out:
            out.add_rows("sessions", sessions)
            out.add_rows("turns", rows)
        verdicts = [_verdict(row["turn_id"], draw.choice((1, 0, -1, None)), words(9) if draw.random() < 0.4 else None,
                             words) for row in rows]  # fmt: skip
        with stages["judge"].writing(part) as out:
            out.add_rows("verdicts", verdicts)
        with stages["teacher"].writing(part) as out:
            out.add_rows(
                "targets", [_target(v, numbers, tokens) for v in verdicts if v["hint"] or v["reward"] is not None]
            )
    return run


def _open(run: Path, parts: int) -> dict[str, Stage]:
    extract = Stage.open(ExtractConfig(run=run, logs=("log",), shard="0/1"), "extract", [SESSIONS, TURNS, REJECTED],
                         parts=parts)  # fmt: skip
    judge = Stage.open(
        JudgeConfig(run=run, judge="rules", shard="0/1"), "judge", [VERDICTS], parts=parts, upstream=["extract"]
    )
    teacher = Stage.open(TeacherConfig(run=run, model=str(MODEL), shard="0/1"), "teacher", [TARGETS], parts=parts,
                         inputs={"model": identify_model(str(MODEL))}, upstream=["extract", "judge"])  # fmt: skip
    return {"extract": extract, "judge": judge, "teacher": teacher}


def message(role: str, content: str | None, **fields: Any) -> Row:
    empty = {"reasoning": None, "name": None, "tool_call_id": None, "tool_calls": []}
    return {"role": role, "content": content} | empty | fields


def _conversation(name: str, words: Callable[[int], str]) -> Row:
    said = [message("user" if n % 2 == 0 else "assistant", words(25)) for n in range(2 * TURNS_A_SESSION + 1)]
    return {"session_id": name, "source": f"{name.partition(':')[0]}.jsonl", "line": int(name.partition(":")[2]) + 1,
            "format": "openai", "model": None, "messages": said, "tools": None, "metadata": None,
            "tree": None}  # fmt: skip


def turn_row(session_id: str, index: int, **fields: Any) -> Row:
    return {"turn_id": f"{session_id}:{index}", "session_id": session_id, "message_index": index, "next_count": 1,
            "next_role": "user", "kind": "main", "trainable": True, "skip_reason": None, "finish_reason": None,
            "response_token_ids": None, "behavior_logprobs": None, "decision": None} | fields  # fmt: skip


def _verdict(turn_id: str, reward: int | None, hint: str | None, words: Callable[[int], str]) -> Row:
    scores = [reward] * 4 + [0] if reward is not None else [None] * 5
    return {
        "turn_id": turn_id,
        "hint_votes": [{"decision": 1 if hint else -1, "hint": hint, "raw": words(20), "error": None}],
        "reward_votes": [{"score": s, "raw": words(20), "error": None if s is not None else "no answer: it rambles"}
                         for s in scores],
        "reward": reward, "reward_status": "no_quorum" if reward is None else "ok",
        "reward_agreement": None if reward is None else scores.count(reward) / 5, "hints": [hint] if hint else [],
        "hint": hint, "hint_status": "ok" if hint else "none",
    }  # fmt: skip


def _target(verdict: Row, numbers: np.random.Generator, tokens: int, ids: Sequence[int] | None = None) -> Row:
    ids = list(ids) if ids is not None else numbers.integers(0, 400, tokens).tolist()
    old = np.float32(-numbers.exponential(1.0, len(ids)))
    teacher = np.float32(np.minimum(old + numbers.normal(0, 0.8, len(ids)), 0)) if verdict["hint"] else None
    return {
        "turn_id": verdict["turn_id"], "written": None, "prompt_tokens": 40, "cut_messages": 0, "response_ids": ids,
        "response_mask": [True] * (len(ids) - 1) + [False], "old_logprobs": old.tolist(),
        "teacher_logprobs": None if teacher is None else teacher.tolist(), "unhinted_logprobs": None,
        "behavior_logprobs": None, "hint": verdict["hint"], "overlap": None, "support_ids": None, "support_old": None,
        "support_teacher": None, "reward": verdict["reward"],
    }  # fmt: skip


# -- every text an attack ----------------------------------------------------------------------------------------------


def hostile_run(run: Path, turns: int, attack: Callable[[], str]) -> int:
    """Write a finished run with an attack in every text of every table, manifest and note; return their number.

    `attack` returns another text at each call.
    """
    count = 0

    def bad() -> str:
        nonlocal count
        count += 1
        return attack()

    stages = _open(run, parts=1)
    sessions = [_hostile_session(bad) for _ in range(turns)]
    rows = [turn_row(s["session_id"], 1, turn_id=f"{s['session_id']}:1", next_role=bad(), kind=bad(),
                     finish_reason=bad(), skip_reason=bad() if n % 5 == 4 else None, trainable=n % 5 != 4)
            for n, s in enumerate(sessions)]  # fmt: skip
    with stages["extract"].writing(0) as out:
        out.add_rows("sessions", sessions)
        out.add_rows("turns", rows)
        out.add_rows("rejected", [{"source": bad(), "line": 1, "reason": bad(), "detail": bad(), "raw": bad()}])
        out.counters.drop(bad())
        out.counters.count("skipped", label=bad())
        out.counters.count(bad())
    verdicts = [_hostile_verdict(row["turn_id"], n, bad) for n, row in enumerate(rows) if row["trainable"]]
    with stages["judge"].writing(0) as out:
        out.add_rows("verdicts", verdicts)
        out.counters.drop(bad())
        out.counters.count("rejected hints", label=bad())
    numbers = np.random.default_rng(0)
    with stages["teacher"].writing(0) as out:
        out.add_rows("targets", [_target(v, numbers, 0, _ids(bad())) for v in verdicts])
        out.counters.drop(bad())
    _hostile_results(run, [v["turn_id"] for v in verdicts], bad)
    for name in ("extract", "judge", "teacher", "train", "eval"):
        path = run / name / "manifest.json"
        document = json.loads(path.read_text())
        document["configuration"][bad()] = bad()
        path.write_text(json.dumps(document))
    (run / ".failed").mkdir()
    failure = {name: bad() for name in ("stage", "shard", "time", "host", "error")} | {"job": None}
    (run / ".failed" / "judge-0-of-1.json").write_text(json.dumps(failure))
    return count


def _hostile_session(bad: Callable[[], str]) -> Row:
    call = {"id": bad(), "name": bad(), "arguments": bad()}
    said = [
        message(bad(), bad(), name=bad(), reasoning=bad()),
        message("assistant", bad(), name=bad(), reasoning=bad(), tool_calls=[call]),
        message(bad(), bad(), name=bad(), tool_call_id=bad()),
    ]
    return {"session_id": bad(), "source": bad(), "line": 1, "format": bad(), "model": bad(), "messages": said,
            "tools": bad(), "metadata": json.dumps({bad(): bad()}), "tree": None}  # fmt: skip


def _hostile_verdict(turn_id: str, number: int, bad: Callable[[], str]) -> Row:
    hints = [bad(), bad()]
    return {
        "turn_id": turn_id,
        "hint_votes": [{"decision": 1, "hint": h, "raw": bad(), "error": None} for h in hints]
        + [{"decision": None, "hint": None, "raw": bad(), "error": bad()}],
        "reward_votes": [{"score": 1, "raw": bad(), "error": None}, {"score": None, "raw": bad(), "error": bad()}],
        "reward": (1, 0, -1, None)[number % 4], "reward_status": bad(), "reward_agreement": 1.0, "hints": hints,
        "hint": hints[0], "hint_status": bad(),
    }  # fmt: skip


def _ids(text: str) -> list[int]:
    """Return the token ids of the attack, 200 at most, as a reply."""
    from opdkit.model.load import load_tokenizer

    ids: list[int] = load_tokenizer(str(MODEL))(text, add_special_tokens=False)["input_ids"]
    return ids[:200] or [1]


def _hostile_results(run: Path, turn_ids: Sequence[str], bad: Callable[[], str]) -> None:
    train = Stage.open(TrainConfig(run=run, model=str(MODEL), shard="0/1"), "train", [METRICS], parts=1,
                       upstream=["teacher"])  # fmt: skip
    with train.writing(0) as out:
        numbers: Row = {f.name: 0.5 if pa.types.is_floating(f.type) else 1 for f in METRICS.schema}
        out.add_rows("metrics", [numbers | {"step": 1, "turn_ids": list(turn_ids[::2]), "skipped": False}])
        out.counters.drop(bad())
    evaluation = Stage.open(EvalConfig(run=run, prompts=bad(), shard="0/1"), "eval", [REPLIES, SCORES], parts=1,
                            upstream=["train"])  # fmt: skip
    with evaluation.writing(0) as out:
        for prompt in (bad(), bad()):
            out.add_rows("replies", [{"prompt_id": prompt, "domain": bad(), "model": model, "sample": 0, "reply": bad(),
                                  "finish_reason": bad(), "passed": model == "after", "hint_echo": bad(),
                                  "hollow": bad(), "called": None, "probe": None, "session": bad(),
                                  "kl": 0.5 if model == "before" else None}
                                 for model in ("before", "after")])  # fmt: skip
        out.add_rows("scores", [{"metric": metric, "domain": bad(), "before": 0.1, "after": 0.2, "difference": 0.1,
                             "low": 0.0, "high": 0.2, "chance": 0.5, "count": 3, "units": 3}
                            for metric in ("passed_sampled", bad())])  # fmt: skip
