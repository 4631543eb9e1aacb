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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from opdkit.config.fields import JSON
from opdkit.console import warn
from opdkit.errors import OpdkitError
from opdkit.judge.candidates import explain_candidates
from opdkit.store import manifest, parts_of_turns
from opdkit.store.joined import JUDGED, JoinedTurn, joined_turns
from opdkit.store.nearest import nearest_turns
from opdkit.store.reading import has_stage
from opdkit.store.reviews import Reviews, in_force
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
        self._judge: JSON = manifest(run, "judge")["plan"]["config"] if has_stage(run, "judge") else {}
        self._texts: Callable[[Sequence[int]], list[str]] | None = None

    def views_of_part(self, part: int, turn_ids: Sequence[str]) -> Iterator[JSON]:
        """Yield the views of turns of one part, in the order of `turn_ids`."""
        columns = {**JUDGED, "targets": ["turn_id", *_TARGET, *_TOKENS]}
        joined = joined_turns(self.run, part, columns, reviews=self.reviews, turn_ids=turn_ids, partial=True)
        turns = {turn.turn_id: turn for turn in joined}
        for turn in (turns[name] for name in turn_ids):
            yield {
                **{name: turn.turn[name] for name in _TURN},
                **{name: turn.session[name] for name in _SESSION},
                "messages": [_message(m) for m in turn.session["messages"][: turn.index + 1 + turn.turn["next_count"]]],
                "verdict": self._verdict(turn),
                "review": None if turn.review is None else turn.review.to_json(),
                "targets": [self._target(row) for row in turn.targets],
            }

    def _verdict(self, turn: JoinedTurn) -> JSON | None:
        verdict, decided = turn.verdict, turn.decided
        if verdict is None or decided is None:
            return None
        return {
            **{name: decided[name] for name in _VERDICT},
            "reward_votes": verdict["reward_votes"],
            "hint_votes": verdict["hint_votes"],
            "voted": {name: verdict[name] for name in _VERDICT},
            "candidates": explain_candidates(turn.session["messages"], turn.turn, verdict, self._judge),
        }

    def _target(self, row: JSON) -> JSON:
        if self._texts is None:
            try:
                self._texts = open_texts(manifest(self.run, "teacher")["plan"]["inputs"]["model"])
            except OpdkitError as error:
                warn(str(error))
                self._texts = ids_as_texts
        tokens = []
        ids, mask, old_logprobs = (row[name].tolist() for name in ("response_ids", "response_mask", "old_logprobs"))
        teacher_logprobs = [None] * len(ids) if row["teacher_logprobs"] is None else row["teacher_logprobs"].tolist()
        columns = zip(self._texts(ids), ids, mask, old_logprobs, teacher_logprobs, strict=True)
        for text, token_id, trained, old, teacher in columns:
            advantage = None if teacher is None else teacher - old
            tokens.append({"text": text, "id": token_id, "trained": trained, "old": old, "teacher": teacher,
                           "advantage": advantage})  # fmt: skip
        return {**{name: row[name] for name in _TARGET}, "unit": "token", "tokens": tokens}


def _message(message: JSON) -> JSON:
    calls = [{"name": call["name"], "arguments": call["arguments"]} for call in message["tool_calls"]]
    return {name: message[name] for name in ("role", "content", "reasoning", "name")} | {"tool_calls": calls}
