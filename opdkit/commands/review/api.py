"""Decisions of the reviewers' page, as JSON. This module knows nothing of HTTP."""

import threading
from dataclasses import replace
from pathlib import Path

from opdkit.commands.turns.hint_groups import read_hints_of_group
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError
from opdkit.store import reviews
from opdkit.store.plans import has_stage
from opdkit.store.reading import find_parts, part_path, read_arrow
from opdkit.store.reviews import GROUP, InvalidDecisionError, Review, ReviewLog

_FIELDS = ("turn_id", "action", "reward", "hint", "note", "chosen", "seen")
_GROUP_FIELDS = ("group", "action", "hint", "seen")


class Api:
    """Decisions on one run; new ones are added in the name of one reviewer. Safe for several threads at once.

    Decisions are numbered. A page sends the last number that it has `seen`, and gets the decisions since.
    """

    def __init__(self, run: Path, reviewer: str) -> None:
        """Open the run. Raises OpdkitError if it is not judged yet."""
        if not has_stage(run, "judge"):
            raise OpdkitError(f"{run} is not judged yet, so there is nothing to review: run "
                              f"`opdkit judge {quote(run)} ...` first")  # fmt: skip
        self.run, self.reviewer = run, reviewer
        self._log, self._lock = ReviewLog(run), threading.Lock()

    def decisions(self, seen: int = -1) -> JSON:
        """Return {"last": number of the last decision, "reviews": {turn_id: the decision in force, or null}}.

        The turns are those decided on after `seen`; null if the decision was withdrawn.
        """
        with self._lock:
            in_force, every = self._log.in_force(), self._log.all_reviews()
            changed = (in_force.get(review.turn_id, review) for review in every if review.ordinal > seen)
            found = {one.turn_id: one.to_json() if one.action == "set" else None for one in changed}
            return {"last": every[-1].ordinal if every else -1, "reviews": found}

    def decide(self, document: object) -> JSON:
        """Add a decision on a turn, or on all turns of a group of hints. Return `decisions(seen)`.

        `seen` is a field of the document, -1 by default. Raises InvalidDecisionError, and writes nothing, if the
        document is not a decision or a turn has no verdict; ConflictError if a turn was decided on after `seen`.
        """
        if not isinstance(document, dict):
            raise InvalidDecisionError("a decision is a JSON object")
        fields = _GROUP_FIELDS if "group" in document else _FIELDS
        if unknown := sorted(document.keys() - set(fields)):
            raise InvalidDecisionError(f"unknown field {unknown[0]!r}; a decision has: {', '.join(fields)}")
        seen = document.get("seen", -1)
        if type(seen) is not int or seen > self.decisions()["last"]:
            raise InvalidDecisionError(f"seen is {seen!r}; no decision has that number: open the page again")
        decided = self._parse_group(document) if "group" in document else [parse_decision(document)]
        voted = read_votes(self.run, [review.turn_id for review in decided])
        for n, review in enumerate(decided):
            if review.turn_id not in voted:
                raise InvalidDecisionError(f"turn {review.turn_id} has no verdict, so there is nothing to decide")
            reward, hint = voted[review.turn_id]
            reviews.check_typed_hint(review, hint)
            decided[n] = replace(review, voted_reward=reward)
        with self._lock:
            self._log.append(decided, reviewer=self.reviewer, seen=seen)
        return self.decisions(seen)

    def _parse_group(self, document: JSON) -> list[Review]:
        """Read {"group": wording, "action": "keep", "set" with a "hint", or "strike"} as decisions on all its turns.

        "keep" decides for the hints as the judge gave them, "set" for "hint" (null: no hint), and "strike" withdraws
        the decisions on hints. Decisions on rewards stay. Raises InvalidDecisionError for anything else.
        """
        action, hint = document.get("action"), document.get("hint")
        if action not in ("keep", "set", "strike") or (action == "set") != ("hint" in document):
            raise InvalidDecisionError("action is not keep, strike, or set with a hint")
        hint = hint.strip() if isinstance(hint, str) else hint
        with self._lock:
            in_force, decided = self._log.in_force(), list[Review]()
        for turn_id, voted in read_hints_of_group(self.run, document["group"]).items():
            before = in_force.get(turn_id, Review(turn_id, chosen=GROUP))
            after = replace(before, hint_decided=action != "strike", hint=voted if action == "keep" else hint)
            if action == "strike" and before.chosen == GROUP and turn_id in in_force:
                decided.append(Review(turn_id, action="strike"))
            elif after != before:
                decided.append(after)
        return decided


def parse_decision(document: JSON) -> Review:
    """Read {"turn_id", "action", "reward"?, "hint"?, "note"?, "chosen"?}. Raises InvalidDecisionError otherwise."""
    if not isinstance(document.get("turn_id"), str):
        raise InvalidDecisionError("turn_id is missing")
    texts = [document.get("hint"), None if document.get("note") == "" else document.get("note")]
    hint, note = (text.strip() if isinstance(text, str) else text for text in texts)
    review = Review(document["turn_id"], "reward" in document, document.get("reward"), "hint" in document, hint, note,
                    action=document.get("action", ""), chosen=document.get("chosen"))  # fmt: skip
    if (error := reviews.find_problem(review)) is not None:
        raise InvalidDecisionError(error)
    return review


def read_votes(run: Path, turn_ids: list[str]) -> dict[str, tuple[int | None, str | None]]:
    """Return turn_id -> (reward, hint) of the votes, for those of the turns that are judged."""
    wanted, voted = set(turn_ids), dict[str, tuple[int | None, str | None]]()
    for part in sorted(set(find_parts(run, turn_ids).values())):
        if part_path(run, "verdicts", part).exists():
            rows = read_arrow(run, "verdicts", part, ["turn_id", "reward", "hint"]).to_pylist()
            voted |= {row["turn_id"]: (row["reward"], row["hint"]) for row in rows if row["turn_id"] in wanted}
    return voted
