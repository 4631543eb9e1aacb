"""One turn with everything that a run knows about it, as JSON, for `opdkit show`, the report and the reviewers' page.

    {"turn_id", "session_id", "source", "line", "format", "model", "message_index", "kind", "trainable", "skip_reason",
     "finish_reason", "next_count",
     "messages"  the session up to the end of the turn's next state: {"role", "content", "reasoning", "name",
                 "tool_calls": [{"name", "arguments"}]}; the one at message_index is the reply
     "verdict"   as the decision in force leaves it, null where there is none: {"reward", "reward_status",
                 "reward_agreement", "hint", "hint_status", "reward_votes", "hint_votes",
                 "voted": {the first five, as the votes alone say},
                 "candidates": [{"hint", "status": "chosen", or in words why it lost}]}
     "review"    the decision in force, null where there is none (opdkit/store/reviews.py)
     "targets"   [{"written", "prompt_tokens", "cut_messages", "hint", "reward", "overlap", "unit": "token",
                   "tokens": [{"text", "id", "trained", "old", "teacher", "advantage"}]}], log-probs in nats}

A run need not be finished: what a stage has not written is null or [].
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from opdkit.config.fields import JSON
from opdkit.console import warn
from opdkit.errors import OpdkitError
from opdkit.judge.candidates import candidates
from opdkit.judge.stage import Case
from opdkit.store import manifest, part_path, parts_of_turns, read_arrow
from opdkit.store.nearest import nearest_turns
from opdkit.store.plans import stage_dir
from opdkit.store.reviews import Review, Reviews, applied, in_force
from opdkit.store.tables import TABLES
from opdkit.store.token_text import ids_as_texts, open_texts

_TURN = ("turn_id", "session_id", "message_index", "kind", "trainable", "skip_reason", "finish_reason", "next_count")
_SESSION = ("source", "line", "format", "model")
_VERDICT = ("reward", "reward_status", "reward_agreement", "hint", "hint_status")
_TARGET = ("written", "prompt_tokens", "cut_messages", "hint", "reward", "overlap")
_TOKENS = ("response_ids", "response_mask", "old_logprobs", "teacher_logprobs")


def turn_view(run: Path, turn_id: str) -> JSON:
    """Return one turn with everything. Raises OpdkitError for an unknown turn, naming the nearest."""
    return next(turn_views(run, [turn_id]))


def turn_views(run: Path, turn_ids: Sequence[str], reviews: Reviews | None = None) -> Iterator[JSON]:
    """Yield turns with everything, in the order of the parts, and within a part as they are given.

    Each part is read once. `reviews` are the decisions in force, if the caller has read them. Raises OpdkitError for a
    turn that the run does not have, before the first view.
    """
    parts = parts_of_turns(run, turn_ids)
    unknown = next((name for name in turn_ids if name not in parts), None)
    if unknown is not None:
        raise OpdkitError(f"{run} has no turn {unknown!r}; {nearest_turns(run, unknown)}")
    viewer = _Viewer(run, in_force(run) if reviews is None else reviews)
    by_part: defaultdict[int, list[str]] = defaultdict(list)
    for name in dict.fromkeys(turn_ids):
        by_part[parts[name]].append(name)
    for part in sorted(by_part):
        yield from viewer.views_of_part(part, by_part[part])


class _Viewer:
    """Makes the views of a run's turns; opens the tokenizer once, when the first target needs it."""

    def __init__(self, run: Path, reviews: Reviews) -> None:
        self.run, self.reviews = run, reviews
        self._judge: JSON = manifest(run, "judge")["plan"]["config"] if self._has_stage("judge") else {}
        self._texts: Callable[[Sequence[int]], list[str]] | None = None

    def _has_stage(self, stage: str) -> bool:
        return (stage_dir(self.run, stage) / "manifest.json").exists()

    def views_of_part(self, part: int, turn_ids: Sequence[str]) -> Iterator[JSON]:
        """Yield the views of turns of one part, in the order of `turn_ids`."""
        turns = {row["turn_id"]: row for row in self._rows("turns", part, "turn_id", turn_ids)}
        names = {turn["session_id"] for turn in turns.values()}
        sessions = {row["session_id"]: row for row in self._rows("sessions", part, "session_id", names)}
        verdicts = {row["turn_id"]: row for row in self._rows("verdicts", part, "turn_id", turn_ids)}
        targets: defaultdict[str, list[JSON]] = defaultdict(list)
        for row in self._rows("targets", part, "turn_id", turn_ids, ["turn_id", *_TARGET, *_TOKENS]):
            targets[row["turn_id"]].append(row)
        for name in turn_ids:
            turn, review = turns[name], self.reviews.get(name)
            session = sessions[turn["session_id"]]
            case = Case(turn, session["messages"])
            yield {
                **{name: turn[name] for name in _TURN},
                **{name: session[name] for name in _SESSION},
                "messages": [_message(m) for m in session["messages"][: case.index + 1 + case.next_count]],
                "verdict": None if name not in verdicts else self._verdict(case, verdicts[name], review),
                "review": None if review is None else review.to_json(),
                "targets": [self._target(row) for row in targets[name]],
            }

    def _rows(
        self, table: str, part: int, key: str, values: Collection[str], columns: Sequence[str] | None = None
    ) -> list[JSON]:
        """Return the rows of a part whose `key` is one of `values`; [] if the stage has not written the part."""
        if not self._has_stage(TABLES[table].stage) or not part_path(self.run, table, part).exists():
            return []
        arrow = read_arrow(self.run, table, part, columns)
        rows: list[JSON] = arrow.filter(pc.is_in(arrow[key], pa.array(sorted(values), pa.string()))).to_pylist()
        return rows

    def _verdict(self, case: Case, verdict: JSON, review: Review | None) -> JSON:
        decided = applied(verdict, review)
        return {
            **{name: decided[name] for name in _VERDICT},
            "reward_votes": verdict["reward_votes"],
            "hint_votes": verdict["hint_votes"],
            "voted": {name: verdict[name] for name in _VERDICT},
            "candidates": candidates(case, verdict, self._judge),
        }

    def _target(self, row: JSON) -> JSON:
        if self._texts is None:
            try:
                self._texts = open_texts(manifest(self.run, "teacher")["plan"]["inputs"]["model"])
            except OpdkitError as error:
                warn(str(error))
                self._texts = ids_as_texts
        tokens = []
        ids, old_logprobs = row["response_ids"], row["old_logprobs"]
        teacher_logprobs = row["teacher_logprobs"] or [None] * len(ids)
        columns = zip(self._texts(ids), ids, row["response_mask"], old_logprobs, teacher_logprobs, strict=True)
        for text, token_id, trained, old, teacher in columns:
            advantage = None if teacher is None else teacher - old
            tokens.append({"text": text, "id": token_id, "trained": trained, "old": old, "teacher": teacher,
                           "advantage": advantage})  # fmt: skip
        return {**{name: row[name] for name in _TARGET}, "unit": "token", "tokens": tokens}


def _message(message: JSON) -> JSON:
    calls = [{"name": call["name"], "arguments": call["arguments"]} for call in message["tool_calls"]]
    return {name: message[name] for name in ("role", "content", "reasoning", "name")} | {"tool_calls": calls}
