"""Training curves, and the scores before and after."""

from pathlib import Path

from opdkit.config.fields import JSON
from opdkit.store.reading import part_path, read_part
from opdkit.store.tables import METRICS

POINTS = 800  # more steps than this are averaged to so many points
_REPLIES, _REPLY_CHARS = 40, 500
_NO_CURVES = ("turn_ids", "step", "epoch")


def training(run: Path) -> JSON | None:
    """Return the metrics of each optimizer step, column by column; None if no training has finished."""
    if not part_path(run, "metrics", 0).exists():
        return None
    rows = read_part(run, "metrics", 0)
    stride = -(-len(rows) // POINTS) if rows else 1
    chunks = [rows[i : i + stride] for i in range(0, len(rows), stride)]
    curves = {}
    for field in METRICS.schema:
        if field.name in _NO_CURVES:
            continue
        means: list[float | None] = []
        for chunk in chunks:
            values = [row[field.name] for row in chunk if row[field.name] is not None]
            means.append(sum(values) / len(values) if values else None)
        if any(mean is not None for mean in means):
            curves[field.name] = {"values": means, "meaning": field.metadata[b"meaning"].decode()}
    steps, epochs = ([chunk[-1][name] for chunk in chunks] for name in ("step", "epoch"))
    return {"steps": len(rows), "stride": stride, "step": steps, "epoch": epochs, "curves": curves}


def evaluation(run: Path) -> JSON | None:
    """Return the scores, and pairs of greedy replies; None without `opdkit eval`.

    Pairs in which only one of the replies passed come first.
    """
    if not part_path(run, "replies", 0).exists():
        return None
    from opdkit.evaluate.bootstrap import FEWEST
    from opdkit.evaluate.scores import METRICS as SCORED  # imported here: it brings torch

    pairs: dict[str, JSON] = {}
    for row in read_part(run, "replies", 0):
        if row["sample"] == 0:
            pair = pairs.setdefault(row["prompt_id"], {"prompt_id": row["prompt_id"], "domain": row["domain"]})
            pair[row["model"]] = {"reply": row["reply"][:_REPLY_CHARS], "passed": row["passed"]}
    replies = [pair for pair in pairs.values() if "before" in pair and "after" in pair]
    replies.sort(key=lambda pair: pair["before"]["passed"] == pair["after"]["passed"])
    return {"scores": read_part(run, "scores", 0), "fewest": FEWEST,
            "words": {name: metric.words for name, metric in SCORED.items()},
            "better": {name: metric.better for name, metric in SCORED.items() if metric.better},
            "units": {name: metric.unit for name, metric in SCORED.items()},
            "replies": replies[:_REPLIES], "prompts": len(replies), "reply_chars": _REPLY_CHARS}  # fmt: skip
