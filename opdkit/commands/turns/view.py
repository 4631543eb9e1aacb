"""Turns with everything that a run knows about them, as JSON, for `opdkit show`, the report and `opdkit review`.

    {"turn_id", "session_id", "source", "line", "format", "model", "message_index", "kind", "trainable", "skip_reason",
     "finish_reason", "next_count",
     "messages"  the session up to the end of the turn's next state: {"role", "content", "reasoning", "name",
                 "tool_calls": [{"name", "arguments"}]}; the one at message_index is the reply
     "decision"  what a person decided in the log: [name, text] of each part, [] if nothing
     "verdict"   with the decision in force applied, null if not judged: {"reward", "reward_status",
                 "reward_agreement", "hint", "hint_status", "reward_votes", "hint_votes",
                 "voted": {the first five, of the votes alone},
                 "candidates": [{"hint", "status": "chosen", or in words why it lost}]}
     "review"    the decision in force, null if there is none (opdkit/store/reviews.py)
     "targets"   [{"written", "prompt_tokens", "cut_messages", "hint", "reward", "overlap", "unit": "token",
                   "tokens": [{"text", "id", "trained", "old", "teacher", "advantage",
                               "likely"  at a marked token, else null: {"student", "teacher"}, each with the LIKELIEST
                                         stored tokens: [text, log-prob]}]}], log-probs in nats}

A run need not be finished: what a stage has not written is null or [].
"""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from opdkit.chat.conversation import NO_DECISION
from opdkit.commands.turns.line import VERDICT, signed
from opdkit.commands.turns.nearest import suggest_turns
from opdkit.commands.turns.token_text import TextsOf, load_texts
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError
from opdkit.judge.hints import explain_candidates
from opdkit.store.joined_turns import CHECKED, JoinedTurn, joined_turns
from opdkit.store.plans import has_stage, manifest
from opdkit.store.reading import find_parts
from opdkit.store.reviews import read_reviews_in_force

_TURN = ("turn_id", "session_id", "message_index", "kind", "trainable", "skip_reason", "finish_reason", "next_count")
_SESSION = ("source", "line", "format", "model")
_MESSAGE = ("role", "content", "reasoning", "name")
_TARGET = ("written", "prompt_tokens", "cut_messages", "hint", "reward", "overlap")
_TOKENS = ("response_ids", "response_mask", "old_logprobs", "teacher_logprobs")
_SUPPORTS = {"student": "support_old", "teacher": "support_teacher"}
STEPS = (0.1, 0.5, 1.5)  # |advantage| (nats) from which a token is marked weakly, clearly, strongly; in the report, too
LIKELIEST = 3


def read_turn_view(run: Path, turn_id: str) -> JSON:
    """Return the view of one turn. Raises OpdkitError that suggests similar turns if the run does not have it."""
    return next(read_turn_views(run, [turn_id]))


def read_turn_views(run: Path, turn_ids: Sequence[str]) -> Iterator[JSON]:
    """Yield the views of turns, in the order of the log; each part is read once.

    Raises OpdkitError for a turn that the run does not have, before the first view.
    """
    parts = find_parts(run, turn_ids)
    unknown = next((name for name in turn_ids if name not in parts), None)
    if unknown is not None:
        raise OpdkitError(f"{run} has no turn {unknown!r}; {suggest_turns(run, unknown)}")
    reviews = read_reviews_in_force(run)
    judge: JSON = manifest(run, "judge")["plan"]["config"] if has_stage(run, "judge") else {}
    columns = {**CHECKED, "targets": ["turn_id", *_TARGET, *_TOKENS, "support_ids", *_SUPPORTS.values()]}
    texts = cache(load_texts)  # loaded on first use: a run without targets needs no tokenizer
    for part in sorted(set(parts.values())):
        for turn in joined_turns(run, part, columns, reviews=reviews, turn_ids=turn_ids, partial=True):
            yield _make_view(turn, judge) | {"targets": [_make_target(row, texts(run)) for row in turn.targets]}


def _make_view(turn: JoinedTurn, judge: JSON) -> JSON:
    """Return a view without its targets. `judge` is the configuration of the judge."""
    messages = turn.session["messages"]
    view: JSON = {name: turn.turn[name] for name in _TURN} | {name: turn.session[name] for name in _SESSION}
    view |= {"trainable": turn.skip_reason is None, "skip_reason": turn.skip_reason}
    decision = turn.turn["decision"] or NO_DECISION
    parts = {"rated": "" if decision["rating"] is None else signed(decision["rating"]), "comment": decision["comment"],
             "tags": ", ".join(decision["tags"]), "edited to": decision["edited"],
             "kept instead": decision["kept"]}  # fmt: skip
    view |= {"messages": [], "decision": [(name, text) for name, text in parts.items() if text], "verdict": None}
    view |= {"review": None if turn.review is None else turn.review.to_json()}
    for message in messages[: turn.index + 1 + turn.turn["next_count"]]:
        calls = [{"name": call["name"], "arguments": call["arguments"]} for call in message["tool_calls"]]
        view["messages"].append({name: message[name] for name in _MESSAGE} | {"tool_calls": calls})
    if turn.verdict is not None and turn.final_verdict is not None:
        view["verdict"] = {
            **{name: turn.final_verdict[name] for name in VERDICT},
            "reward_votes": turn.verdict["reward_votes"],
            "hint_votes": turn.verdict["hint_votes"],
            "voted": {name: turn.verdict[name] for name in VERDICT},
            "candidates": explain_candidates(messages, turn.turn, turn.verdict, judge),
        }
    return view


def _make_target(row: JSON, token_texts: TextsOf) -> JSON:
    ids, mask, old_logprobs = (row[name].tolist() for name in ("response_ids", "response_mask", "old_logprobs"))
    teacher_logprobs = [None] * len(ids) if row["teacher_logprobs"] is None else row["teacher_logprobs"].tolist()
    tokens = []
    columns = zip(token_texts(ids), ids, mask, old_logprobs, teacher_logprobs, strict=True)
    for n, (text, token_id, trained, old, teacher) in enumerate(columns):
        advantage = None if teacher is None else teacher - old
        is_marked = trained and advantage is not None and abs(advantage) >= STEPS[0]
        likely = _list_likely(row, n, token_texts) if is_marked and row["support_ids"] is not None else None
        tokens.append({"text": text, "id": token_id, "trained": trained, "old": old, "teacher": teacher,
                       "advantage": advantage, "likely": likely})  # fmt: skip
    return {**{name: row[name] for name in _TARGET}, "unit": "token", "tokens": tokens}


def _list_likely(row: JSON, position: int, token_texts: TextsOf) -> JSON:
    """Return the LIKELIEST tokens of student and of teacher at a position, among those that are stored there."""
    ids, found = row["support_ids"][position], JSON()
    for model, column in _SUPPORTS.items():
        logprobs = row[column][position].astype(float)
        order = np.argsort(-logprobs, kind="stable")[:LIKELIEST]
        found[model] = [[token_texts([int(ids[k])])[0], float(logprobs[k])] for k in order]
    return found
