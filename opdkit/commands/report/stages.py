"""What the stages say of themselves: the funnel from lines to trained tokens, the configuration, and what is missing.

All of it comes from manifests and from the footers of the parts.
"""

from collections import Counter
from pathlib import Path

from opdkit.commands.report.joined import has_stage
from opdkit.config.commands import COMMANDS
from opdkit.config.fields import JSON, fields_of
from opdkit.console import counted
from opdkit.errors import OpdkitError
from opdkit.store import (
    Summary,
    command_of,
    manifest,
    mostly_dropped,
    outdated,
    part_count,
    part_path,
    read_arrow,
    summary_of,
)
from opdkit.store.failures import failures
from opdkit.store.tables import TABLES

SHOWN = ("extract", "judge", "teacher", "train", "eval")
TERMS = ("reward", "teacher", "support", "divergence")


def summaries(run: Path) -> dict[str, Summary]:
    """The stages that the run has, in order, each with what its finished parts add up to."""
    found = {}
    for stage in SHOWN:
        if has_stage(run, stage):
            primary = next(table for table in TABLES.values() if table.stage == stage)
            found[stage] = summary_of(run, stage, primary, part_count(run, stage))
    return found


def stages(run: Path, found: dict[str, Summary]) -> list[JSON]:
    """One entry a stage of the pipeline, also for those that have not been run."""
    return [_stage(run, stage, found.get(stage)) for stage in SHOWN]


def _stage(run: Path, stage: str, found: Summary | None) -> JSON:
    if found is None:
        return {"stage": stage, "parts": 0, "done": 0}
    counters = found.counters
    return {
        "stage": stage, "command": command_of(run, stage), "done": found.parts_done, "parts": found.parts,
        "rows_in": counters.rows_in, "rows_out": counters.rows_out, "dropped": counters.dropped.most_common(),
        "extra": [(f"{name}: {label}" if label else name, n) for name, numbers in sorted(counters.counts.items())
                  for label, n in sorted(numbers.items())], "seconds": round(counters.seconds, 1),
    }  # fmt: skip


def of_another(run: Path, stage: str) -> str | None:
    """The stage that was done anew, or removed, since `stage` was computed from it; None where there is none."""
    try:
        return outdated(run, stage)
    except OpdkitError:  # it is gone
        return "earlier"


def notices(run: Path, found: dict[str, Summary]) -> list[str]:
    """In words, what a reader should know first: what failed, what is not finished, what lost most of its input."""
    said = [f"{f['stage']} --shard {f['shard']} failed {f['time']}: {f['error']}" for f in failures(run)]
    for stage, summary in found.items():
        if before := of_another(run, stage):
            kept = "and is left out" if stage == "eval" else "whose figures these are"
            said.append(f"{stage} was computed from another {before} stage than is there now, {kept}: run `opdkit "
                        f"{command_of(run, stage)}` again, with --overwrite")  # fmt: skip
        if summary.parts_done < summary.parts:
            said.append(f"{stage} has finished {summary.parts_done:,} of {counted(summary.parts, 'part')}; the rest "
                        "is not in this report")  # fmt: skip
    said += [message for stage in ("judge", "teacher") if stage in found
             for message in mostly_dropped(stage, found[stage].counters)]  # fmt: skip
    return said


def rejected_hints(found: dict[str, Summary]) -> Counter[str]:
    """The judge's candidates that failed the filter, by reason (a leak among them)."""
    return found["judge"].counters.labels("rejected hints") if "judge" in found else Counter()


# -- the funnel --------------------------------------------------------------------------------------------------------


def funnel(run: Path, found: dict[str, Summary], seen: Counter[str], tokens: int) -> list[JSON]:
    """The levels from log lines to trained tokens, each with why the rows of the one before are gone.

    `seen` counts turns by what the tables say of them; `tokens` are the sampled ones of all targets.
    """
    levels: list[JSON] = []
    if "extract" in found:
        counters = found["extract"].counters
        sampled = command_of(run, "extract") == "rollout"
        levels.append(_level("extract", "turns answered afresh" if sampled else "conversations in the logs", "",
                             counters.rows_in))  # fmt: skip
        levels.append(_level("extract", "sessions", "sessions", counters.rows_out, counters.dropped))
        levels.append(_level("extract", "turns", "turns", seen["turns"]))
        levels.append(
            _level("extract", "turns that may be trained on", "turns", seen["trainable"], counters.labels("skipped"))
        )  # fmt: skip)
    if "judge" in found:
        counters = found["judge"].counters
        gone = _not_reached(run, found["judge"], seen["turns"] - counters.rows_in)
        levels.append(_level("judge", "judged", "turns", counters.rows_out, gone))
        levels.append(_level("judge", "with a reward", "turns", seen["reward"], part_of="judged"))
        levels.append(_level("judge", "with a hint", "turns", seen["hint"], part_of="judged"))
    if "teacher" in found:
        counters = found["teacher"].counters
        own = counters.total("written by the teacher")
        gone = _not_reached(run, found["teacher"], found["judge"].counters.rows_out - (counters.rows_in - own))
        levels.append(_level("teacher", "targets", "replies", counters.rows_out, counters.dropped + gone))
        if own:
            levels.append(_level("teacher", "written by the teacher itself", "replies", own, part_of="targets"))
        levels.append(_level("teacher", "tokens of the targets", "tokens", tokens))
    if "train" in found:
        counters = found["train"].counters
        gone = _not_reached(run, found["train"], found["teacher"].counters.rows_out - counters.rows_in)
        levels.append(_level("train", "trained replies", "replies", counters.rows_out, counters.dropped + gone))
        levels += _trained_tokens(run)
    return levels


def _level(
    stage: str, name: str, unit: str, count: int, dropped: Counter[str] | None = None, part_of: str | None = None
) -> JSON:
    reasons = [(reason, n) for reason, n in (dropped or Counter()).most_common() if n]
    return {"stage": stage, "name": name, "unit": unit, "count": count, "dropped": reasons, "part_of": part_of}


def _not_reached(run: Path, found: Summary, count: int) -> Counter[str]:
    """Rows of the stage before that this one has not seen, by the reason."""
    limited = manifest(run, found.stage)["plan"]["config"].get("limit")
    return Counter({"beyond --limit" if limited else "in parts that are not done": max(0, count)})


def _trained_tokens(run: Path) -> list[JSON]:
    """The tokens in each term of the loss, over all steps: a token counts once an epoch."""
    if not part_path(run, "metrics", 0).exists():
        return []
    steps = read_arrow(run, "metrics", 0, [f"{term}_tokens" for term in TERMS])
    sums = {term: sum(steps[f"{term}_tokens"].to_pylist()) for term in TERMS}
    return [_level("train", f"tokens in the {term} term, all epochs", "token visits", count)
            for term, count in sums.items() if count]  # fmt: skip


# -- configuration -----------------------------------------------------------------------------------------------------


def configuration(run: Path, found: dict[str, Summary]) -> list[JSON]:
    """What each stage was run with, as its manifest has it, and which of it is not the default."""
    return [_configured(run, stage) for stage in found]


def _configured(run: Path, stage: str) -> JSON:
    pinned, command = manifest(run, stage), command_of(run, stage)
    config = COMMANDS[command].config
    defaults = {field.name: field.default for field in fields_of(config)}
    options = [
        [key, value, _plain(value) != _plain(defaults.get(key))] for key, value in pinned["configuration"].items()
    ]
    inputs = pinned["plan"].get("inputs", {})
    models = [[name, one["name"]] for name, one in inputs.items() if isinstance(one, dict) and "name" in one]
    return {"stage": stage, "command": command, "fingerprint": pinned["fingerprint"],
            "version": pinned["plan"].get("opdkit"), "options": options, "models": models}  # fmt: skip


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
