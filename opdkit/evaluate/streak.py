"""Number of sessions until three in a row are right: the measure of OpenClaw-RL v2, on the sessions of the log.

In the log, a session is right if its first reply with a reward has reward +1. For the models before and after training,
it is right if their greedy reply at its first hinted turn follows that hint, which a judge decides. Sessions without a
hint say nothing about what a new reply should do, so they are left out for the models.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opdkit.config.fields import JSON
from opdkit.config.wording import Texts
from opdkit.evaluate.checks import ALL, Criterion, HeldOutPrompt
from opdkit.evaluate.replies import Reply
from opdkit.evaluate.scores import MODELS
from opdkit.store.joined_turns import CHECKED, joined_turns
from opdkit.store.reading import count_parts
from opdkit.store.turn_ids import is_held_out

IN_A_ROW = 3
MOST_SESSIONS = 64  # most sessions that the models answer


@dataclass(frozen=True)
class LoggedSession:
    """Session of the log: whether it was right (None: no reward), and its first hinted turn as a prompt, if any."""

    right: bool | None = None
    prompt: HeldOutPrompt | None = None


def count_sessions_before_streak(right: Sequence[bool]) -> int:
    """Return the number of sessions before the first IN_A_ROW right ones; len(right) if that never happens."""
    starts = range(len(right) - IN_A_ROW + 1)
    return next((s for s in starts if all(right[s : s + IN_A_ROW])), len(right))


def read_logged_sessions(run: Path, limit: int | None, holdout: float, texts: Texts) -> Iterator[LoggedSession]:
    """Yield the judged sessions of a run, in the order of the log. With `holdout`, only held-out ones have a prompt.

    `texts` holds the wording of the criterion.
    """
    for part in range(count_parts(run, "judge")):
        sessions: dict[str, LoggedSession] = {}
        for turn in joined_turns(run, part, CHECKED, limit=limit, partial=True):
            if (verdict := turn.final_verdict) is None:
                continue
            session = sessions.setdefault(turn.session_id, LoggedSession())
            if session.right is None and verdict["reward"] is not None:
                session = replace(session, right=verdict["reward"] == 1)
            is_asked = not holdout or is_held_out(turn.session_id, holdout)
            if session.prompt is None and verdict["hint"] is not None and is_asked:
                check = Criterion(texts["follows_hint"], verdict["hint"])
                before, tools = turn.session["messages"][: turn.index], turn.session["tools"]
                session = replace(session, prompt=HeldOutPrompt(turn.turn_id, "log", before, tools, check))
            sessions[turn.session_id] = session
        yield from sessions.values()


def score_streaks(sessions: Sequence[LoggedSession], replies: Sequence[Reply]) -> list[JSON]:
    """Return the rows of `scores` for the log, and for the models' greedy replies to its hinted turns.

    A reply without a verdict counts as not right.
    """
    logged = [session.right for session in sessions if session.right is not None]
    before, after = ([bool(r.passed) for r in replies if r.model == model] for model in MODELS)
    rows: list[JSON] = []
    for metric, sides in (("hint_streak", (before, after)), ("log_streak", (logged, None))):
        if sides[0]:
            old, new = (None if right is None else float(count_sessions_before_streak(right)) for right in sides)
            difference = None if old is None or new is None else new - old
            rows.append({"metric": metric, "domain": ALL, "before": old, "after": new, "difference": difference,
                         "low": None, "high": None, "chance": None, "count": len(sides[0]),
                         "units": len(sides[0])})  # fmt: skip
    return rows
