"""Number of sessions until three in a row are right: the measure of OpenClaw-RL v2, on the sessions of the log.

In the log, a session is right if its first reply with a reward has reward +1. For the models before and after training,
it is right if their greedy reply at its first hinted turn follows that hint, which a judge decides. Sessions without a
hint say nothing about what a new reply should do, so they are left out for the models.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import JSON
from opdkit.config.wording import Texts
from opdkit.evaluate.checks import ALL, Criterion, HeldOutPrompt
from opdkit.evaluate.replies import Reply
from opdkit.evaluate.scores import MODELS
from opdkit.store.joined_turns import CHECKED, all_joined_turns, by_session
from opdkit.store.turn_ids import is_held_out

IN_A_ROW = 3
MOST_SESSIONS = 64  # most sessions that the models answer


@dataclass(frozen=True)
class LoggedSession:
    """Session of the log: whether it was right (None: no reward), and its first hinted turn as a prompt, if any."""

    right: bool | None
    prompt: HeldOutPrompt | None


def count_sessions_before_streak(right: Sequence[bool]) -> int:
    """Return the number of sessions before the first IN_A_ROW right ones; len(right) if that never happens."""
    starts = range(len(right) - IN_A_ROW + 1)
    return next((s for s in starts if all(right[s : s + IN_A_ROW])), len(right))


def read_logged_sessions(run: Path, limit: int | None, holdout: float, texts: Texts) -> Iterator[LoggedSession]:
    """Yield the judged sessions of a run, in the order of the log. With `holdout`, only held-out ones have a prompt.

    `texts` holds the wording of the criterion.
    """
    for turns in by_session(all_joined_turns(run, CHECKED, limit=limit, partial=True)):
        judged = [(turn, verdict) for turn in turns if (verdict := turn.final_verdict) is not None]
        rewards = [verdict["reward"] for _, verdict in judged if verdict["reward"] is not None]
        hinted = [(turn, verdict["hint"]) for turn, verdict in judged if verdict["hint"] is not None]
        prompt = None
        if hinted and (not holdout or is_held_out(turns[0].session_id, holdout)):
            turn, hint = hinted[0]
            before, tools = turn.session["messages"][: turn.index], turn.session["tools"]
            check = Criterion(texts["follows_hint"], hint)
            prompt = HeldOutPrompt(turn.turn_id, "log", before, tools, check)
        if judged:
            yield LoggedSession(rewards[0] == 1 if rewards else None, prompt)


def score_streaks(sessions: Sequence[LoggedSession], replies: Sequence[Reply]) -> list[JSON]:
    """Return the rows of `scores` for the log, and for the models' greedy replies to its hinted turns.

    Sessions without a verdict on the replies of both models are left out.
    """
    logged = [session.right for session in sessions if session.right is not None]
    verdicts = zip(*([r.passed for r in replies if r.model == model] for model in MODELS), strict=True)
    known = [(old, new) for old, new in verdicts if old is not None and new is not None]
    before, after = ([pair[side] for pair in known] for side in (0, 1))
    rows: list[JSON] = []
    for metric, sides in (("hint_streak", (before, after)), ("log_streak", (logged, None))):
        if sides[0]:
            old, new = (None if right is None else float(count_sessions_before_streak(right)) for right in sides)
            difference = None if old is None or new is None else new - old
            rows.append({"metric": metric, "domain": ALL, "before": old, "after": new, "difference": difference,
                         "low": None, "high": None, "chance": None, "count": len(sides[0]),
                         "units": len(sides[0])})  # fmt: skip
    return rows
