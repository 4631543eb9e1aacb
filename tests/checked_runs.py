"""A whole run that needs no model: real extract and rules judge, invented numbers in the later stages."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sample_world import DATA, MODEL
from small_logs import lines_mb

from opdkit.config.evaluate import EvalConfig
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import StageConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.extract import stage as extract
from opdkit.judge import stage as judge
from opdkit.store.counters import Counters, read_counters
from opdkit.store.digests import forget_digest
from opdkit.store.part_writer import Stage
from opdkit.store.plans import identify_model, manifest, stage_dir
from opdkit.store.reading import part_path, read_all, read_part
from opdkit.store.tables import METRICS, REPLIES, SCORES, TABLES, TARGETS, VALIDATIONS, Table, to_arrow

Row = dict[str, Any]
K = 3
PART_MB = lines_mb(DATA / "logs" / "openai.jsonl", 8)


def whole_run(run: Path) -> Path:
    """Write a run of three parts with about eight sessions each, all stages finished."""
    logs = str(DATA / "logs" / "openai.jsonl")
    extract.run(ExtractConfig(run=run, logs=(logs,), limit=24, part_mb=PART_MB, shard="0/1"))
    judge.run(JudgeConfig(run=run, judge="rules", shard="0/1"))
    identity = {"model": identify_model(str(MODEL))}
    teacher = Stage.open(TeacherConfig(run=run, model=str(MODEL), shard="0/1"), "teacher", [TARGETS], parts=3,
                         inputs=identity, upstream=["extract", "judge"])  # fmt: skip
    random = np.random.default_rng(0)
    for part in range(3):
        with teacher.writing(part) as out:
            verdicts = read_part(run, "verdicts", part)
            rows = [_target(v, random) for v in verdicts if v["hint"] or v["reward"] is not None]
            out.counters.rows_in = len(verdicts)
            out.counters.drop("no signal", len(verdicts) - len(rows))
            out.add_rows("targets", rows)
    train = Stage.open(TrainConfig(run=run, model=str(MODEL), shard="0/1"), "train", [METRICS, VALIDATIONS],
                       parts=1, inputs=identity, upstream=["teacher"])  # fmt: skip
    with train.writing(0) as out:
        shutil.copytree(MODEL, stage_dir(run, "train") / "model")
        names = [row["turn_id"] for row in read_all(run, "targets")]
        out.add_rows("metrics", [_step(n + 1, names[n::4]) for n in range(4)])
        out.add_rows(
            "validations", [_validation(0, 0.75, 0.0), _validation(2, 0.25, 0.125), _validation(4, 0.125, 0.5)]
        )
        out.counters.rows_in = out.counters.rows_out = len(names)
        out.counters.count("steps", 4)
    evaluation = Stage.open(EvalConfig(run=run, prompts="p.jsonl", shard="0/1"), "eval", [REPLIES, SCORES], parts=1,
                            upstream=["extract", "judge", "teacher", "train"])  # fmt: skip
    with evaluation.writing(0) as out:
        out.add_rows("replies", [_reply(p, m, s) for p in "ab" for m in ("before", "after") for s in (0, 1)])
        out.add_rows("scores", [_score("passed_sampled", 0.25, 0.5), _score("passed_greedy", 0.0, 1.0)])
        out.counters.rows_in = out.counters.rows_out = 4
        out.counters.count("replies", 8)
    return run


def _target(verdict: Row, random: np.random.Generator) -> Row:
    length = int(random.integers(1, 9))
    ids = np.stack([random.permutation(400)[:K] for _ in range(length)]).astype(np.int32)
    support = np.log(random.dirichlet(np.ones(K + 1), length)[:, :K]).astype(np.float16)
    hinted = verdict["hint"] is not None
    logprobs = [float(x) for x in np.float32(-random.exponential(1.0, length))]
    return {
        "turn_id": verdict["turn_id"], "written": None, "prompt_tokens": 12, "cut_messages": 0,
        "response_ids": random.integers(0, 400, length).tolist(), "response_mask": [True] * length,
        "old_logprobs": logprobs, "teacher_logprobs": logprobs if hinted else None, "unhinted_logprobs": None,
        "behavior_logprobs": None, "hint": verdict["hint"], "overlap": 0.5 if hinted else None, "support_ids": ids,
        "support_old": support, "support_teacher": support if hinted else None, "reward": verdict["reward"],
    }  # fmt: skip


def _step(number: int, turns: list[str]) -> Row:
    numbers = {f.name: 0.5 for f in METRICS.schema if pa.types.is_floating(f.type)}
    counts = {f.name: 1 for f in METRICS.schema if pa.types.is_integer(f.type)}
    return numbers | counts | {"step": number, "turns": len(turns), "turn_ids": turns, "skipped": False}


def _validation(step: int, hint_kl: float, kept_kl: float) -> Row:
    return {"step": step, "replies": 16, "hint_kl": hint_kl, "kept_kl": kept_kl, "forgotten": 0.0,
            "hint_kls": [{"turn_id": "log:1:1", "kl": hint_kl}],
            "score": hint_kl + kept_kl, "ended": 1.0, "looped": 0.0, "broke_call": 0.0, "tokens_read": 900,
            "went_back_to": None}  # fmt: skip


def _reply(prompt: str, model: str, sample: int) -> Row:
    return {"prompt_id": prompt, "probe": None, "domain": "all", "session": None, "model": model, "sample": sample,
            "reply": "Yes.", "finish_reason": "stop", "passed": True, "hollow": None, "called": None, "hint_echo": None,
            "kl": None if sample == 0 or model == "after" else 0.5}  # fmt: skip


def _score(metric: str, before: float, after: float) -> Row:
    return {"metric": metric, "domain": "all", "before": before, "after": after, "difference": after - before,
            "low": -1.0, "high": 1.0, "chance": 0.5, "count": 2, "units": 2}  # fmt: skip


# -- damage ---------------------------------------------------------------------------------------------------------


def recommit(
    run: Path,
    table: str,
    part: int,
    change: Callable[[list[Row]], Any] = lambda rows: None,
    *,
    counters: Callable[[Counters], Any] = lambda counters: None,
    arrow: Callable[[pa.Table], pa.Table] = lambda arrow: arrow,
    spec: Table | None = None,
    plan: str | None = None,
) -> None:
    """Rewrite a part as a stage with a bug would: with other rows, counters or footer, but a right digest."""
    spec = spec or TABLES[table]
    path = part_path(run, table, part)
    counted, rows = read_counters(path), read_part(run, table, part)
    before = len(rows)
    change(rows)
    counted.rows_out += len(rows) - before
    counted.rows_in += len(rows) - before if table in ("verdicts", "targets") else 0
    counters(counted)
    path.unlink()
    forget_digest(stage_dir(run, spec.stage), table, part)
    stage = Stage(StageConfig(run=run, shard="0/1"), spec.stage, [spec], 1,
                  plan or manifest(run, spec.stage)["fingerprint"])  # fmt: skip
    stage._commit(spec, part, arrow(to_arrow(TABLES[table], rows)), counted)
