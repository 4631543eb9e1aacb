"""Runs on sample_data with the verdicts of a perfect judge (labels.jsonl), which need no model."""

from pathlib import Path
from typing import Any

from sample_world import DATA, labels
from small_logs import run as extract

from opdkit.config.judge import JudgeConfig
from opdkit.store.part_writer import Stage
from opdkit.store.reading import count_parts, read_part
from opdkit.store.tables import VERDICTS


def labelled_run(run: Path, **options: Any) -> Path:
    """Extract sample_data (`options` are extract's) and write the verdicts of the labels.

    If the user wanted something else, the turn has a hint that says what.
    """
    extract(run, DATA / "logs", **options)
    known = {row["turn_id"]: row for row in labels()}
    parts = count_parts(run, "extract")
    stage = Stage.open(JudgeConfig(run=run, judge="rules"), "judge", [VERDICTS], parts=parts, upstream=["extract"])
    for part in range(parts):
        with stage.writing(part) as out:
            for turn in read_part(run, "turns", part):
                out.counters.rows_in += 1
                if turn["trainable"]:
                    out.add_rows("verdicts", [_verdict(turn["turn_id"], **_said(known[turn["turn_id"]]))])
                else:
                    out.counters.drop(turn["skip_reason"])
    return run


def _said(label: dict[str, Any]) -> dict[str, Any]:
    wanted = label["wanted"]
    return {"reward": label["reward"], "hint": f"The user wants this: {wanted}." if wanted else None}


def _verdict(turn_id: str, reward: int | None, hint: str | None) -> dict[str, Any]:
    return {
        "turn_id": turn_id, "hint_votes": [], "reward_votes": [{"score": reward, "raw": "", "error": None}],
        "reward": reward, "reward_status": "failed" if reward is None else "ok",
        "reward_agreement": None if reward is None else 1.0,
        "hints": [hint] if hint else [], "hint": hint, "hint_status": "ok" if hint else "none",
    }  # fmt: skip
