"""What the reviewers' page asks, and what it is answered: turn views and decisions, as JSON. Knows nothing of HTTP."""

import threading
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from opdkit.commands.turn_view import turn_view
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError
from opdkit.store import part_path, parts_of_turns, read_arrow, reviews
from opdkit.store.plans import stage_dir
from opdkit.store.reviews import Ledger, Review

_FIELDS = ("turn_id", "action", "reward", "hint", "note")


class UnknownTurnError(OpdkitError):
    """The run has no such turn."""


class Api:
    """The answers of one run to one reviewer's page. Used by several threads at once."""

    def __init__(self, run: Path, reviewer: str) -> None:
        """Raises OpdkitError when the run is not judged yet."""
        if not (stage_dir(run, "judge") / "manifest.json").exists():
            raise OpdkitError(
                f"{run} is not judged yet, so there is nothing to review: run `opdkit judge {quote(run)} ...` first"
            )
        self.run, self.reviewer = run, reviewer
        self._ledger, self._lock = Ledger(run), threading.Lock()

    def turn(self, turn_id: str) -> JSON:
        """A turn with everything. Raises UnknownTurnError."""
        if turn_id not in parts_of_turns(self.run, [turn_id]):
            raise UnknownTurnError(f"there is no turn {turn_id}")
        return turn_view(self.run, turn_id)

    def decisions(self) -> JSON:
        """turn_id -> the decision in force."""
        return {name: review.to_json() for name, review in self._in_force().items()}

    def decide(self, document: object) -> JSON:
        """Take one decision; {"review": what is now in force on its turn, or null}.

        Raises OpdkitError, and has written nothing, when it is none or is on no judged turn.
        """
        review = decision_of(document)
        refuse_unjudged(self.run, [review.turn_id])
        reviews.append(self.run, [review], reviewer=self.reviewer)
        found = self._in_force().get(review.turn_id)
        return {"review": None if found is None else found.to_json()}

    def _in_force(self) -> reviews.Reviews:
        with self._lock:
            return self._ledger.in_force()


def decision_of(document: object) -> Review:
    """{"turn_id", "action", "reward"?, "hint"?, "note"?} as a decision. Raises OpdkitError for anything else."""
    if not isinstance(document, dict):
        raise OpdkitError("a decision is a JSON object")
    unknown = sorted(document.keys() - set(_FIELDS))
    if unknown:
        raise OpdkitError(f"unknown field {unknown[0]!r}; a decision has: {', '.join(_FIELDS)}")
    turn_id = document.get("turn_id")
    if not isinstance(turn_id, str):
        raise OpdkitError("turn_id is missing")
    review = Review(
        turn_id,
        reward_decided="reward" in document,
        reward=document.get("reward"),
        hint_decided="hint" in document,
        hint=_stripped(document.get("hint")),
        note=None if document.get("note") == "" else _stripped(document.get("note")),
        action=document.get("action", ""),
    )
    what = reviews.invalid(review)
    if what is not None:
        raise OpdkitError(what)
    return review


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def refuse_unjudged(run: Path, turn_ids: list[str]) -> None:
    """Raise OpdkitError unless every one of the turns has a verdict, which is what a decision is about."""
    unjudged = without_verdict(run, turn_ids)
    if unjudged:
        raise OpdkitError(f"turn {unjudged[0]} has no verdict, so there is nothing to decide")


def without_verdict(run: Path, turn_ids: list[str]) -> list[str]:
    """Those of the turns that the run does not have, or has not judged."""
    parts = parts_of_turns(run, turn_ids)
    judged: set[str] = set()
    for part in sorted(set(parts.values())):
        if part_path(run, "verdicts", part).exists():
            ids = read_arrow(run, "verdicts", part, ["turn_id"])["turn_id"]
            judged.update(pc.unique(ids).to_pylist())
    return [name for name in turn_ids if name not in judged]
