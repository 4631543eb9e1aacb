"""Training curves, and before and after."""

from collections.abc import Sequence
from pathlib import Path

from opdkit.config.fields import JSON
from opdkit.store import part_path, read_part
from opdkit.store.tables import METRICS

POINTS = 800  # more steps than this are averaged, so many to a point
_REPLIES, _REPLY_CHARS = 40, 500
_NO_CURVES = ("turn_ids", "step", "epoch")


def training(run: Path) -> JSON | None:
    """The metrics of each optimizer step, column by column; None where no training has finished."""
    if not part_path(run, "metrics", 0).exists():
        return None
    rows = read_part(run, "metrics", 0)
    stride = -(-len(rows) // POINTS) if rows else 1
    chunks = [rows[i : i + stride] for i in range(0, len(rows), stride)]
    curves = {}
    for field in METRICS.schema:
        values = [_mean([row[field.name] for row in chunk]) for chunk in chunks] if field.name not in _NO_CURVES else []
        if any(value is not None for value in values):
            curves[field.name] = {"values": values, "meaning": field.metadata[b"meaning"].decode()}
    return {
        "steps": len(rows),
        "stride": stride,
        "step": [chunk[-1]["step"] for chunk in chunks],
        "epoch": [chunk[-1]["epoch"] for chunk in chunks],
        "curves": curves,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def evaluation(run: Path) -> JSON | None:
    """The scores, and the greedy replies side by side, those first that changed sides; None without `opdkit eval`."""
    if not part_path(run, "replies", 0).exists():
        return None
    from opdkit.evaluate.bootstrap import FEWEST
    from opdkit.evaluate.scores import BETTER, UNITS  # imported here: they bring torch
    from opdkit.evaluate.scores import METRICS as WORDS

    pairs: dict[str, JSON] = {}
    for row in read_part(run, "replies", 0):
        if row["sample"] == 0:
            pair = pairs.setdefault(row["prompt_id"], {"prompt_id": row["prompt_id"], "domain": row["domain"]})
            pair[row["model"]] = {"reply": row["reply"][:_REPLY_CHARS], "passed": row["passed"]}
    both = [pair for pair in pairs.values() if "before" in pair and "after" in pair]
    both.sort(key=lambda pair: pair["before"]["passed"] == pair["after"]["passed"])
    return {"scores": read_part(run, "scores", 0), "words": WORDS, "better": BETTER, "units": UNITS,
            "fewest": FEWEST,
            "replies": both[:_REPLIES], "prompts": len(both), "reply_chars": _REPLY_CHARS}  # fmt: skip
