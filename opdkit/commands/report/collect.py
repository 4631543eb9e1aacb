"""Everything the report says of a run, in one pass over its parts."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from opdkit.commands.report import stages
from opdkit.commands.report.curves import evaluation, training
from opdkit.commands.report.joined import JoinedTurn, has_stage, joined_turns
from opdkit.commands.report.listed import ListedTurn, Listing
from opdkit.commands.report.tallies import Advantages, Hints, Shares, Votes
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError
from opdkit.version import __version__

DOMINANT_SOURCE, DOMINANT_SESSION = 0.5, 0.1  # shares of what is trained on that a reader should know of


@dataclass(frozen=True)
class Collected:
    """What goes into the page: the summary of the run, and the turns of the list, those that matter most first."""

    summary: JSON
    rows: list[ListedTurn]


def collect(run: Path, rows: int) -> Collected:
    """Fold over the finished parts; a part and `rows` lines are in memory.

    Raises OpdkitError when there is nothing to report, and what `read_arrow` raises.
    """
    if not has_stage(run, "extract"):
        raise OpdkitError(f"{run} holds no run: start one with `opdkit extract {quote(run)} LOGS...`")
    votes, hints, advantages, shares = Votes(), Hints(), Advantages(), Shares()
    listing, seen = Listing(rows), Counter[str]()
    for turn in joined_turns(run):
        _count(seen, turn)
        for tally in (votes, hints, advantages, shares, listing):
            tally.add(turn)
    if not listing.total:
        raise OpdkitError(f"{run} has no finished turns yet: `opdkit status {quote(run)}` says how far it is")
    found = stages.summaries(run)
    shared = shares.result()
    summary = {
        "run": str(run),
        "opdkit": __version__,
        "stages": stages.stages(run, found),
        "notices": [*stages.notices(run, found), *dominant(shared)],
        "funnel": stages.funnel(run, found, seen, shared["total"].get("tokens", 0)),
        "votes": votes.result() if "judge" in found else None,
        "hints": hints.result(stages.rejected_hints(found)) if "judge" in found else None,
        "advantages": advantages.result() if "teacher" in found else None,
        "shares": shared,
        "training": training(run) if "train" in found else None,
        "evaluation": evaluation(run) if "eval" in found and not stages.of_another(run, "eval") else None,
        "configuration": stages.configuration(run, found),
        "turns": listing.total,
        "reviewed": seen["reviewed"],
    }
    return Collected(summary, listing.rows())


def _count(seen: Counter[str], turn: JoinedTurn) -> None:
    seen["turns"] += 1
    seen["trainable"] += turn.turn["trainable"]
    seen["reviewed"] += turn.review is not None
    if (verdict := turn.decided) is not None:
        seen["reward"] += verdict["reward"] is not None
        seen["hint"] += verdict["hint"] is not None


def dominant(shares: JSON) -> list[str]:
    """In words, when one source or one session decides much of what is learned: a mistake, or poisoned feedback."""
    total, what = (
        (shares["total"]["tokens"], "tokens") if shares["total"].get("tokens") else (shares["total"]["turns"], "turns")
    )
    said = []
    source = next(iter(shares["sources"]), None)
    if source and total and len(shares["sources"]) > 1 and source.get(what, 0) > DOMINANT_SOURCE * total:
        said.append(f"one source has {source[what] / total:.0%} of the {what} to train on: {source['source']}")
    session = next(iter(shares["sessions"]), None)
    many = shares["session_count"] > 1 / DOMINANT_SESSION
    if session and total and many and session.get(what, 0) > DOMINANT_SESSION * total:
        said.append(f"one session has {session[what] / total:.0%} of the {what} to train on: {session['session']} "
                    "(`opdkit train --max-turns-per-session` bounds it)")  # fmt: skip
    return said
