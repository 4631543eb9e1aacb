"""One turn with all that a run knows about it, as JSON: what `opdkit show`, the report and the reviewers' page show.

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
from collections.abc import Collection, Iterator, Sequence
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
from opdkit.store.token_text import TokenTexts, ids_as_texts, open_texts

_TURN = ("turn_id", "session_id", "message_index", "kind", "trainable", "skip_reason", "finish_reason", "next_count")
_SESSION = ("source", "line", "format", "model")
_VERDICT = ("reward", "reward_status", "reward_agreement", "hint", "hint_status")
_TARGET = ("written", "prompt_tokens", "cut_messages", "hint", "reward", "overlap")
_TOKENS = ("response_ids", "response_mask", "old_logprobs", "teacher_logprobs")


def turn_view(run: Path, turn_id: str) -> JSON:
    """One turn with everything. Raises OpdkitError for a turn that the run does not have, naming the nearest."""
    return next(turn_views(run, [turn_id]))


def turn_views(run: Path, turn_ids: Sequence[str], reviews: Reviews | None = None) -> Iterator[JSON]:
    """Turns with everything, each part read once: in the order of the parts, within a part as they are given.

    `reviews` are the decisions in force, where the caller has read them. Raises OpdkitError for a turn that the run
    does not have, before the first view.
    """
    parts = parts_of_turns(run, turn_ids)
    unknown = next((name for name in turn_ids if name not in parts), None)
    if unknown is not None:
        raise OpdkitError(f"{run} has no turn {unknown!r}; {nearest_turns(run, unknown)}")
    viewer = Viewer(run, in_force(run) if reviews is None else reviews)
    by_part: defaultdict[int, list[str]] = defaultdict(list)
    for name in dict.fromkeys(turn_ids):
        by_part[parts[name]].append(name)
    for part in sorted(by_part):
        yield from viewer.part(part, by_part[part])


class Viewer:
    """Makes the views of a run's turns; opens the tokenizer once, when the first target needs it."""

    def __init__(self, run: Path, reviews: Reviews) -> None:
        self.run, self.reviews = run, reviews
        judged = (stage_dir(run, "judge") / "manifest.json").exists()
        self._judge: JSON = manifest(run, "judge")["plan"]["config"] if judged else {}
        self._texts: TokenTexts | None = None
        self._opened = False

    def part(self, part: int, turn_ids: Sequence[str]) -> Iterator[JSON]:
        """The views of turns of one part, in the order of `turn_ids`."""
        turns = {row["turn_id"]: row for row in self._rows("turns", part, "turn_id", turn_ids)}
        names = {turn["session_id"] for turn in turns.values()}
        sessions = {row["session_id"]: row for row in self._rows("sessions", part, "session_id", names)}
        verdicts = {row["turn_id"]: row for row in self._rows("verdicts", part, "turn_id", turn_ids)}
        targets: defaultdict[str, list[JSON]] = defaultdict(list)
        for row in self._rows("targets", part, "turn_id", turn_ids, ["turn_id", *_TARGET, *_TOKENS]):
            targets[row["turn_id"]].append(row)
        for name in turn_ids:
            session = sessions[turns[name]["session_id"]]
            yield self._view(turns[name], session, verdicts.get(name), targets.get(name, []))

    def _rows(
        self, table: str, part: int, key: str, values: Collection[str], columns: Sequence[str] | None = None
    ) -> list[JSON]:
        """The rows of a part whose `key` is one of `values`; [] where the stage has not written the part."""
        started = (stage_dir(self.run, TABLES[table].stage) / "manifest.json").exists()
        if not started or not part_path(self.run, table, part).exists():
            return []
        arrow = read_arrow(self.run, table, part, columns)
        rows: list[JSON] = arrow.filter(pc.is_in(arrow[key], pa.array(sorted(values), pa.string()))).to_pylist()
        return rows

    def _view(self, turn: JSON, session: JSON, verdict: JSON | None, targets: list[JSON]) -> JSON:
        case = Case(turn, session["messages"])
        review = self.reviews.get(turn["turn_id"])
        return {
            **{name: turn[name] for name in _TURN},
            **{name: session[name] for name in _SESSION},
            "messages": [_message(m) for m in session["messages"][: case.index + 1 + case.next_count]],
            "verdict": None if verdict is None else self._verdict(case, verdict, review),
            "review": None if review is None else review.to_json(),
            "targets": [self._target(row) for row in targets],
        }

    def _verdict(self, case: Case, verdict: JSON, review: Review | None) -> JSON:
        now = applied(verdict, review)
        return {
            **{name: now[name] for name in _VERDICT},
            "reward_votes": verdict["reward_votes"],
            "hint_votes": verdict["hint_votes"],
            "voted": {name: verdict[name] for name in _VERDICT},
            "candidates": candidates(case, verdict, self._judge),
        }

    def _target(self, row: JSON) -> JSON:
        ids, old, teacher = row["response_ids"], row["old_logprobs"], row["teacher_logprobs"]
        texts = self._texts_of(ids)
        tokens = [
            {
                "text": texts[n],
                "id": ids[n],
                "trained": row["response_mask"][n],
                "old": old[n],
                "teacher": None if teacher is None else teacher[n],
                "advantage": None if teacher is None else teacher[n] - old[n],
            }
            for n in range(len(ids))
        ]
        return {**{name: row[name] for name in _TARGET}, "unit": "token", "tokens": tokens}

    def _texts_of(self, ids: Sequence[int]) -> list[str]:
        if not self._opened:
            self._opened = True
            try:
                self._texts = open_texts(manifest(self.run, "teacher")["plan"]["inputs"]["model"])
            except OpdkitError as error:
                warn(str(error))
        return ids_as_texts(ids) if self._texts is None else self._texts(ids)


def _message(message: JSON) -> JSON:
    calls = [{"name": call["name"], "arguments": call["arguments"]} for call in message["tool_calls"]]
    return {name: message[name] for name in ("role", "content", "reasoning", "name")} | {"tool_calls": calls}
