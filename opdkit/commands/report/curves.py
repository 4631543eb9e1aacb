"""Training curves, and the scores before and after training."""

from pathlib import Path

import numpy as np

from opdkit.config.fields import JSON
from opdkit.evaluate.bootstrap import FEWEST
from opdkit.evaluate.scores import METRICS as SCORED
from opdkit.store.reading import is_written, read_part
from opdkit.store.tables import METRICS
from opdkit.train.best_state import find_best

BARS = 20  # of the histogram of the drift, at most
POINTS = 800  # of a curve, at most; more steps are averaged
_REPLIES, _REPLY_CHARS = 40, 500
_NO_CURVES = ("turn_ids", "step", "epoch")


def read_training(run: Path) -> JSON | None:
    """Return the metrics of each step and the validations, column by column; None if no training has finished."""
    if not is_written(run, "metrics", 0):
        return None
    rows = read_part(run, "metrics", 0)
    stride = -(-len(rows) // POINTS) if rows else 1
    chunks = [rows[i : i + stride] for i in range(0, len(rows), stride)]
    curves = {}
    for field in METRICS.schema:
        if field.name in _NO_CURVES:
            continue
        known = [[row[field.name] for row in chunk if row[field.name] is not None] for chunk in chunks]
        if any(known):
            means = [sum(values) / len(values) if values else None for values in known]
            curves[field.name] = {"values": means, "meaning": field.metadata[b"meaning"].decode()}
    measured = read_part(run, "validations", 0) if is_written(run, "validations", 0) else []
    validations: JSON = {name: [row[name] for row in measured] for name in ("step", "hint_kl", "kept_kl")}
    validations |= {"kept": find_best(measured)["step"]} if measured else {}  # the step whose state became the model
    steps, epochs = ([chunk[-1][name] for chunk in chunks] for name in ("step", "epoch"))
    return {"steps": len(rows), "stride": stride, "step": steps, "epoch": epochs, "curves": curves,
            "validations": validations}  # fmt: skip


def read_evaluation(run: Path) -> JSON:
    """Return the scores, and pairs of greedy replies; pairs in which only one of the two is right come first."""
    pairs: dict[str, JSON] = {}
    rows = read_part(run, "replies", 0)
    for row in rows:
        if row["sample"] == 0 and not row["probe"]:
            pair = pairs.setdefault(row["prompt_id"], {"prompt_id": row["prompt_id"], "domain": row["domain"]})
            pair[row["model"]] = {"reply": row["reply"][:_REPLY_CHARS], "passed": row["passed"]}
    replies = [pair for pair in pairs.values() if "before" in pair and "after" in pair]
    replies.sort(key=lambda pair: pair["before"]["passed"] == pair["after"]["passed"])
    return {"scores": read_part(run, "scores", 0), "fewest": FEWEST,
            "words": {name: metric.words for name, metric in SCORED.items()},
            "better": {name: metric.better for name, metric in SCORED.items() if metric.better},
            "units": {name: metric.unit for name, metric in SCORED.items()}, "drift": describe_drift(rows),
            "replies": replies[:_REPLIES], "prompts": len(replies), "reply_chars": _REPLY_CHARS}  # fmt: skip


def describe_drift(replies: list[JSON]) -> JSON | None:
    """Return the drift over replies of the model before: histogram, quantiles, and the 3 largest with both replies."""
    rows = [row for row in replies if row["kl"] is not None]
    if not rows:
        return None
    texts = {(row["prompt_id"], row["sample"], row["model"]): row["reply"][:_REPLY_CHARS] for row in replies}
    values = np.array([max(0.0, row["kl"]) for row in rows])
    unit = 10.0 ** np.floor(np.log10(values.max() / BARS)) if values.max() else 0.1
    width = next(float(unit * step) for step in (1, 2, 5, 10) if values.max() < BARS * unit * step)
    bars = np.bincount(np.floor(values / width).astype(int))
    return {"count": len(rows), "width": width, "bars": [[n * width, int(number)] for n, number in enumerate(bars)],
            "quantiles": [[rank, float(np.quantile(values, rank))] for rank in (0.5, 0.9, 0.99, 1.0)],
            "largest": [{name: row[name] for name in ("prompt_id", "sample", "kl")}
                        | {side: texts.get((row["prompt_id"], row["sample"], side), "") for side in ("before", "after")}
                        for row in sorted(rows, key=lambda row: -row["kl"])[:3]]}  # fmt: skip
