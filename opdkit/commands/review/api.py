"""Decisions of the reviewers' page, as JSON. Knows nothing of HTTP."""

import threading
from pathlib import Path

import pyarrow.compute as pc

from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError
from opdkit.store import reviews
from opdkit.store.plans import stage_dir
from opdkit.store.reading import part_path, parts_of_turns, read_arrow
from opdkit.store.reviews import Ledger, Review

_FIELDS = ("turn_id", "action", "reward", "hint", "note")


class Api:
    """Decisions on one run, and those of one reviewer that are added. Used by several threads at once."""

    def __init__(self, run: Path, reviewer: str) -> None:
        """Open the run. Raises OpdkitError if it is not judged yet."""
        if not (stage_dir(run, "judge") / "manifest.json").exists():
            raise OpdkitError(f"{run} is not judged yet, so there is nothing to review: run "
                              f"`opdkit judge {quote(run)} ...` first")  # fmt: skip
        self.run, self.reviewer = run, reviewer
        self._ledger, self._lock = Ledger(run), threading.Lock()

    def decisions(self) -> JSON:
        """Return turn_id -> the decision in force."""
        with self._lock:
            return {turn_id: review.to_json() for turn_id, review in self._ledger.in_force().items()}

    def decide(self, document: object) -> JSON:
        """Add one decision, and return {"review": the decision now in force on its turn, or null}.

        Raises OpdkitError, and writes nothing, if the document is not a decision, or its turn is not judged.
        """
        review = parse_decision(document)
        if without_verdict(self.run, [review.turn_id]):
            raise OpdkitError(f"turn {review.turn_id} has no verdict, so there is nothing to decide")
        reviews.append(self.run, [review], reviewer=self.reviewer)
        return {"review": self.decisions().get(review.turn_id)}


def parse_decision(document: object) -> Review:
    """Read {"turn_id", "action", "reward"?, "hint"?, "note"?} as a decision. Raises OpdkitError for anything else."""
    if not isinstance(document, dict):
        raise OpdkitError("a decision is a JSON object")
    unknown = sorted(document.keys() - set(_FIELDS))
    if unknown:
        raise OpdkitError(f"unknown field {unknown[0]!r}; a decision has: {', '.join(_FIELDS)}")
    if not isinstance(document.get("turn_id"), str):
        raise OpdkitError("turn_id is missing")
    texts = [document.get("hint"), None if document.get("note") == "" else document.get("note")]
    hint, note = (text.strip() if isinstance(text, str) else text for text in texts)
    review = Review(document["turn_id"], "reward" in document, document.get("reward"), "hint" in document, hint, note,
                    action=document.get("action", ""))  # fmt: skip
    if (error := reviews.find_problem(review)) is not None:
        raise OpdkitError(error)
    return review


def without_verdict(run: Path, turn_ids: list[str]) -> list[str]:
    """Return those of the turns that the run does not have, or has not judged."""
    judged: set[str] = set()
    for part in sorted(set(parts_of_turns(run, turn_ids).values())):
        if part_path(run, "verdicts", part).exists():
            ids = read_arrow(run, "verdicts", part, ["turn_id"])["turn_id"]
            judged.update(pc.unique(ids).to_pylist())
    return [name for name in turn_ids if name not in judged]
