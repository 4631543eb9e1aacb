"""Content of the report, collected in one pass over a run's turns and one over the log-probs of its targets."""

from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from opdkit.commands.compare import compare_runs
from opdkit.commands.demo import OWN_LOGS
from opdkit.commands.report import stages, tallies
from opdkit.commands.report.curves import read_evaluation, read_training
from opdkit.commands.report.tallies import Advantages, Largest, RewardsByLength, Shares, TurnCounts, Verdicts
from opdkit.commands.turns.hint_groups import Topics
from opdkit.commands.turns.line import TurnLine, make_line
from opdkit.commands.turns.of_run import read_turns
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError
from opdkit.evaluate.comparison import make_training_rows
from opdkit.evaluate.conclusion import is_evaluated, read_conclusion
from opdkit.evaluate.scores import score_rows
from opdkit.store.plans import find_upstream_change, has_stage, list_trainings, manifest, name_runs, no_run_error
from opdkit.store.reading import summary_of
from opdkit.store.run_stage import find_next_step
from opdkit.store.stable_hash import stable_hash
from opdkit.version import __version__

# Kind -> (share, number, remedy): warn if one has more than `share` of the training signal and there are over `number`.
DOMINANT = {"source": (0.5, 1, ""), "session": (0.1, 10, " (`opdkit train --max-turns-per-session` bounds it)")}


class Collected(NamedTuple):
    """Content of the page: summary of the run, turns of the list (most important first), hint groups and checks."""

    summary: JSON
    lines: list[TurnLine]
    groups: dict[str, int]  # hint -> number of its group in the summary
    checks: dict[str, str]  # turn id -> status of its tested hint


def collect(run: Path, rows: int, *, reviewing: bool = False) -> Collected:
    """Collect the content from the finished parts, with one part, `rows` lines and each different hint in memory.

    Half of the lines at most are turns with the largest advantages. The others are drawn at random, judged turns first.
    If `reviewing`, the groups are of the hints of the votes, up to 100 and not 20.

    Raises OpdkitError if there is nothing to report, or a part cannot be read.
    """
    if not has_stage(run, "extract"):
        raise no_run_error(run)
    finished = {stage: summary_of(run, stage) for stage in stages.SHOWN if has_stage(run, stage)}
    has_scores = is_evaluated(run) and not find_upstream_change(run, "eval")
    verdicts = Verdicts(Topics(run) if has_scores else None, voted=reviewing)
    advantages, lengths, shares, seen = Advantages(), RewardsByLength(), Shares(), TurnCounts()
    strongest, drawn = Largest[TurnLine](rows // 2), Largest[TurnLine](rows)
    for number, turn in enumerate(read_turns(run)):
        for tally in (verdicts, advantages, lengths, shares, seen):
            tally.add(turn)
        line = make_line(number, turn, turn.verdict)  # the verdict of the votes; the list shows the review beside it
        if line.strength is not None:
            strongest.add(line, line.strength)
        drawn.add(line, (line.hint_status is not None, stable_hash("report", line.turn_id)))
    if not seen["turns"]:
        raise OpdkitError(f"{run} has no finished turns yet: `opdkit status {quote(run)}` shows its progress")
    totals, judged, most = shares.summarize(), finished.get("judge"), 100 if reviewing else 20
    checked, checks = tallies.read_hint_checks(run, finished)
    concluded, comparison = read_conclusion(run), describe_comparison(run)
    steps = [concluded.next] if concluded else [] if comparison else list(filter(None, [find_next_step(run)]))
    folders = {Path(log).parts[-2:] for log in manifest(run, "extract")["configuration"].get("logs", ())}
    if ("sample_data", "logs") in folders:
        steps.append(f"On your own logs: `{OWN_LOGS}`")
    summary = {
        "run": str(run),
        "conclusion": asdict(concluded) if concluded else None,
        "next": steps,
        "opdkit": __version__,
        "stages": stages.list_progress(run, finished),
        "notices": [*stages.list_notices(run, finished), *find_dominant(totals)],
        "funnel": stages.build_funnel(run, finished, seen, totals["total"].get("tokens", 0)),
        "votes": verdicts.summarize_votes() if judged else None,
        "hints": verdicts.summarize_hints(judged.counters.labels("rejected hints"), most) if judged else None,
        "hint_checks": checked,
        "moved": tallies.count_moved_tokens(run, finished),
        "advantages": advantages.summarize() if "teacher" in finished else None,
        "rewards_by_length": lengths.summarize(),
        "shares": totals,
        "training": read_training(run),
        "evaluation": read_evaluation(run) if has_scores else None,
        "comparison": comparison,
        "configuration": stages.list_configurations(run, finished),
        "turns": seen["turns"],
        "reviewed": seen["reviewed"],
        "changed": seen["changed"],
    }
    lines = strongest.items()
    numbers = {line.number for line in lines}
    lines += [line for line in drawn.items() if line.number not in numbers]
    return Collected(summary, lines[:rows], verdicts.groups.number_of, checks)


def describe_comparison(run: Path) -> JSON | None:
    """Return the comparison of a run's trainings, without replies; None if no named training was evaluated."""
    concluded = {path: found for path in (run, *list_trainings(run).values()) if (found := read_conclusion(path))}
    if len(concluded) < 2:
        alone = [f"{path.stem}: {found.sentence}" for path, found in concluded.items() if path != run]
        return {"sentence": alone[0], "tables": []} if alone else None
    try:
        compared = compare_runs(name_runs(list(concluded)))
    except OpdkitError as error:
        return {"sentence": str(error), "tables": []}
    scores = [score_rows(rows, (compared.trainings[0]["training"], name)) for name, rows in compared.scores.items()]
    return {"sentence": compared.sentence, "watch": compared.watch,
            "tables": [make_training_rows(compared.trainings), *scores]}  # fmt: skip


def find_dominant(shares: JSON) -> list[str]:
    """Return notices of a source or session with much of the training signal: a mistake, or poisoned feedback."""
    unit = "tokens" if shares["total"].get("tokens") else "turns"
    total, notices = shares["total"][unit], []
    counts = {"source": len(shares["sources"]), "session": shares["session_count"]}
    for kind, (most, others, remedy) in DOMINANT.items():
        first: JSON = next(iter(shares[f"{kind}s"]), {})
        if counts[kind] > others and first.get(unit, 0) > most * total:
            share = f"{first[unit] / total:.0%} of the {unit}" + (" to train on" if unit == "tokens" else "")
            notices.append(f"one {kind} has {share}: {first[kind]}{remedy}")
    return notices
