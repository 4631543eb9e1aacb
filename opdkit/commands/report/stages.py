"""Stages of a run: the funnel from log lines to trained tokens, the configuration, and what is missing.

Everything comes from manifests and from the footers of the parts.
"""

from collections import Counter
from pathlib import Path

from opdkit.commands.report.tallies import TurnCounts
from opdkit.config.commands import COMMANDS
from opdkit.config.fields import JSON, fields_of
from opdkit.console import counted
from opdkit.store.counters import Summary, mostly_dropped
from opdkit.store.failures import read_failures
from opdkit.store.plans import find_command, find_upstream_change, manifest
from opdkit.store.reading import is_written, read_arrow
from opdkit.store.reviews import TRAINED_BEFORE, find_outdated_targets, is_trained_before
from opdkit.store.tables import WRITTEN_BY

SHOWN = ("extract", "judge", "teacher", "train", "eval")
TERMS = ("reward", "teacher", "support", "divergence")


def list_progress(run: Path, finished: dict[str, Summary]) -> list[JSON]:
    """Return one entry per stage of the pipeline, including those that have not been run."""
    entries: dict[str, JSON] = {stage: {"stage": stage, "parts": 0, "done": 0} for stage in SHOWN}
    for stage, summary in finished.items():
        counts = sorted(summary.counters.counts.items())
        entries[stage] |= {
            "command": find_command(run, stage), "done": summary.parts_done, "parts": summary.parts,
            "extra": [(f"{name}: {label}" if label else name, n) for name, numbers in counts
                      for label, n in sorted(numbers.items())],
            "seconds": round(summary.counters.seconds, 1),
        }  # fmt: skip
    return [*entries.values()]


def list_notices(run: Path, finished: dict[str, Summary]) -> list[str]:
    """Return notices of what a reader should know first: stages that failed, are not finished or lost most input."""
    lines = [f"{f['stage']} --shard {f['shard']} failed {f['time']}: {f['error']}" for f in read_failures(run)]
    for stage, summary in finished.items():
        if upstream := find_upstream_change(run, stage):
            consequence = "and is left out" if stage == "eval" else "whose figures these are"
            lines.append(f"{stage} was computed from an older {upstream} stage than the one there now, {consequence}: "
                         f"run `opdkit {find_command(run, stage)}` again, with --overwrite")  # fmt: skip
        if summary.parts_done < summary.parts:
            lines.append(f"{stage} has finished {summary.parts_done:,} of {counted(summary.parts, 'part')}; the rest "
                         "is not in this report")  # fmt: skip
    if outdated := find_outdated_targets(run):
        lines.append(f"parts of targets older than the decisions of people: {len(outdated):,}; run `opdkit teacher` "
                     "again as before")  # fmt: skip
    if "train" in finished and is_trained_before(run):
        lines.append(f"train: {TRAINED_BEFORE}; run it again, with --overwrite")
    for stage in ("judge", "teacher"):
        if stage in finished:
            lines += mostly_dropped(stage, finished[stage].counters)
    return lines


def build_funnel(run: Path, finished: dict[str, Summary], seen: TurnCounts, tokens: int) -> list[JSON]:
    """Return the levels from log lines to trained tokens, each with the rows lost since the level before, by reason.

    `tokens`: number of sampled tokens of all targets. Every stage but extract may be missing.
    """
    # If a stage is gone, the number of its rows that the next one has not seen is unknown, and counts as 0.
    judged, scored = (finished[name].counters.rows_out if name in finished else 0 for name in ("judge", "teacher"))
    counters, is_rollout = finished["extract"].counters, find_command(run, "extract") == "rollout"
    levels = [
        _count("extract", "turns answered afresh" if is_rollout else "conversations in the logs", "", counters.rows_in),
        _count("extract", "sessions", "sessions", counters.rows_out, counters.dropped),
        _count("extract", "turns", "turns", seen["turns"]),
        _count("extract", "turns that may be trained on", "turns", seen["trainable"], seen.skipped),
    ]
    if "judge" in finished:
        counters = finished["judge"].counters
        unseen = _count_unseen(run, finished["judge"], seen["waiting"])
        levels += [
            _count("judge", "judged", "turns", counters.rows_out, unseen),
            _count("judge", "with a reward", "turns", seen["reward"], part_of="judged"),
            _count("judge", "with a hint", "turns", seen["hint"], part_of="judged"),
        ]
    if "teacher" in finished:
        counters = finished["teacher"].counters
        written = {by: counters.total(by) for by in WRITTEN_BY}
        unseen = _count_unseen(run, finished["teacher"], judged - (counters.rows_in - sum(written.values())))
        levels.append(_count("teacher", "targets", "replies", counters.rows_out, counters.dropped + unseen))
        levels += [_count("teacher", by, "replies", n, part_of="targets") for by, n in written.items() if n]
        levels.append(_count("teacher", "tokens of the targets", "tokens", tokens))
    if "train" in finished:
        counters = finished["train"].counters
        unseen = _count_unseen(run, finished["train"], scored - counters.rows_in)
        levels.append(_count("train", "trained replies", "replies", counters.rows_out, counters.dropped + unseen))
        levels += [_count("train", by, "replies", n, part_of="trained replies") for by in WRITTEN_BY
                   if (n := counters.total(by))]  # fmt: skip
        if is_written(run, "metrics", 0):
            steps = read_arrow(run, "metrics", 0, [f"{term}_tokens" for term in TERMS])
            for term in TERMS:  # a token counts once per epoch
                if visits := sum(steps[f"{term}_tokens"].to_pylist()):
                    levels.append(_count("train", f"tokens in the {term} term, all epochs", "token visits", visits))
    return levels


def _count(stage: str, name: str, unit: str, count: int, lost: Counter[str] | None = None, part_of: str = "") -> JSON:
    dropped = [(reason, n) for reason, n in (lost or Counter()).most_common() if n]
    return {"stage": stage, "name": name, "unit": unit, "count": count, "dropped": dropped, "part_of": part_of or None}


def _count_unseen(run: Path, summary: Summary, count: int) -> Counter[str]:
    """Return reason -> `count`: rows of the stage before that this stage has not seen."""
    limited = manifest(run, summary.stage)["plan"]["config"].get("limit")
    return Counter({"beyond --limit" if limited else "in parts that are not done": max(0, count)})


def list_configurations(run: Path, finished: dict[str, Summary]) -> list[JSON]:
    """Return the options of each stage, as its manifest has them, and which of them differ from the default.

    `--shard 0/1` counts as the default, which becomes that in a single process.
    """
    entries = []
    for stage in finished:
        pinned, command = manifest(run, stage), find_command(run, stage)
        defaults = {field.name: list(field.default) if isinstance(field.default, tuple) else field.default
                    for field in fields_of(COMMANDS[command].config)}  # fmt: skip
        options = [[key, value, value != defaults.get(key) and (key, value) != ("shard", "0/1")]
                   for key, value in pinned["configuration"].items()]  # fmt: skip
        inputs = pinned["plan"].get("inputs", {})
        models = [[name, one["name"]] for name, one in inputs.items() if isinstance(one, dict) and "name" in one]
        entries.append({"stage": stage, "command": command, "fingerprint": pinned["fingerprint"],
                        "version": pinned["plan"].get("opdkit"), "options": options, "models": models})  # fmt: skip
    return entries
