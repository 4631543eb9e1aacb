"""Checks of the values of one part: keys between tables, ranges, finite numbers.

The checks are declared: VALUES checks single values, ROWS checks whole rows, also against other tables,
UNIQUE checks keys. Only the columns that are checked are read, one part at a time; lists of numbers stay arrays.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from opdkit.console import counted
from opdkit.judge.votes import CONFLICT, NOT_BY_VOTES, OUTCOME, WANTED_REPLIES, choose_reward, list_confidences
from opdkit.store.joined_turns import read_rows_with_arrays
from opdkit.store.reviews import REVIEWED
from opdkit.store.skip_reasons import NO_NEXT
from opdkit.store.tables import EDIT, METRICS, VALIDATIONS
from opdkit.store.turn_ids import turn_id

Row = dict[str, Any]  # lists of numbers are arrays; lists of lists of numbers are (lengths, all values)

_ROUNDING = 1e-3  # log-probs are at most 0 except for rounding; an average over several teachers is rounded once more
_MASS = 1.01  # most that the probabilities of a support may add up to, because its log-probs have half precision
_REWARDS = (-1, 0, 1)
_REWARDED = ("ok", "tie", "empty", OUTCOME)  # reward_status of rewards that are not null


class KnownVerdict(NamedTuple):
    """Fields of a verdict that targets and hint checks depend on."""

    reward: int | None
    hints: frozenset[str]


@dataclass
class Seen:
    """Hashes of the keys in all parts that were read so far."""

    sessions: set[int] = field(default_factory=set)
    turns: set[int] = field(default_factory=set)
    targets: set[int] = field(default_factory=set)  # turns with targets


@dataclass
class Known:
    """Facts from the tables of a part that were read before; None if the table could not be read."""

    seen: Seen = field(default_factory=Seen)
    roles: dict[str, list[str]] | None = None  # session -> roles of its messages
    trainable: dict[str, bool] | None = None  # turn -> whether it may be judged
    last: set[str] = field(default_factory=set)  # turns without a reaction: only outcomes judge them
    verdicts: dict[str, KnownVerdict] | None = None  # by turn
    decisions: dict[str, Any] = field(default_factory=dict)  # turn -> decision that the targets were computed from
    complete: bool = True  # whether every trainable turn must have a verdict (no --limit)
    weighed: bool = False  # whether votes are weighed by their confidences (--weigh-votes)
    vocabulary: int | None = None
    width: int | None = None  # K, the number of token ids per position in the supports
    steps: int | None = None  # optimizer steps of the training
    replies: set[tuple[str, str, int]] = field(default_factory=set)  # prompt, model, sample

    def learn(self, table: str, rows: list[Row]) -> None:
        """Store the facts that the checks of this table and of later tables need."""
        if table == "sessions":
            self.roles = {row["session_id"]: [message["role"] for message in row["messages"]] for row in rows}
        elif table == "turns":
            self.trainable = {row["turn_id"]: row["trainable"] for row in rows}
            self.last = {row["turn_id"] for row in rows if row["skip_reason"] == NO_NEXT}
            self.seen.turns.update(map(hash, self.trainable))
        elif table == "verdicts":
            self.verdicts = {row["turn_id"]: KnownVerdict(row["reward"], frozenset(row["hints"])) for row in rows}
        elif table == "targets":
            self.seen.targets.update(hash(row["turn_id"]) for row in rows)
            supports = (row["support_ids"][0] for row in rows if row["support_ids"] is not None)
            self.width = next((int(widths[0]) for widths in supports if len(widths)), None)
        elif table == "metrics":
            self.steps = len(rows)
        elif table == "replies":
            self.replies = {(row["prompt_id"], row["model"], row["sample"]) for row in rows}


def check_rows(table: str, arrow: pa.Table, known: Known) -> Iterator[tuple[str, int | None, str]]:
    """Yield each kind of error in one part of a table, with the first row (from 0) that has it, and that row's name.

    Adds the facts of this table to `known`.
    """
    rows = _to_rows(arrow)
    known.learn(table, rows)
    values = [(c, text, is_wrong) for name, columns, text, is_wrong in VALUES if name == table for c in columns]
    row_checks = [(text, is_wrong) for name, text, is_wrong in ROWS if name == table]
    unique_columns, not_unique = UNIQUE.get(table, ((), ""))
    keys = known.seen.sessions if table == "sessions" else set[int]()  # session ids are unique over all parts
    first: dict[str, tuple[int | None, str]] = {}  # kind of error -> first row that has it, and its name
    counts: Counter[str] = Counter()
    for n, row in enumerate(rows):
        row["row"], row["row before"] = n, rows[n - 1] if n else None
        texts = [f"{c} {text}" for c, text, is_wrong in values if row[c] is not None and is_wrong(row[c])]
        texts += [text for text, is_wrong in row_checks if is_wrong(row, known)]
        if unique_columns:
            key = hash(tuple(row[column] for column in unique_columns))
            if key in keys:
                texts.append(not_unique)
            keys.add(key)
        counts.update(texts)
        for text in texts:
            first.setdefault(text, (n, NAMES[table].format_map(row)))
    if table == "verdicts" and known.trainable is not None and known.complete:
        left = sorted(name for name, judged in known.trainable.items() if judged and name not in (known.verdicts or {}))
        if left:
            text = "trainable turns without a verdict"
            first[text], counts[text] = (None, left[0]), len(left)
    for text, (place, name) in first.items():
        more = f" (and in {counted(counts[text] - 1, 'more row')})" if counts[text] > 1 else ""
        yield text + more, place, name


def _to_rows(arrow: pa.Table) -> list[Row]:
    kinds = {field.name: field.type.value_type for field in arrow.schema if pa.types.is_list(field.type)}
    nested = [name for name, kind in kinds.items() if pa.types.is_list(kind)]
    flat = [name for name, kind in kinds.items() if pa.types.is_primitive(kind)]
    rows = read_rows_with_arrays(arrow.drop_columns(nested), flat)
    for name in nested:
        for row, lists in zip(rows, arrow[name], strict=True):
            inner = lists.values
            row[name] = None if inner is None else (
                inner.value_lengths().to_numpy(zero_copy_only=False), inner.flatten().to_numpy(zero_copy_only=False)
            )  # fmt: skip
    return rows


def _is_no_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return True
    return False


def _has_bad_logprob(logprobs: NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]) -> bool:
    values = logprobs[1] if isinstance(logprobs, tuple) else logprobs
    return bool((~np.isfinite(values) | (values > _ROUNDING)).any())


def _has_bad_token(ids: NDArray[Any], known: Known) -> bool:
    return bool(((ids < 0) | (ids >= (known.vocabulary or np.iinfo(np.int32).max))).any())


def _is_not_reply(row: Row, known: Known) -> bool:
    roles, index = (known.roles or {}).get(row["session_id"]), row["message_index"]
    return roles is not None and (not 0 <= index < len(roles) or roles[index] != "assistant")


def _has_other_next_state(row: Row, known: Known) -> bool:
    roles, index, count = (known.roles or {}).get(row["session_id"]), row["message_index"], row["next_count"]
    if roles is None or _is_not_reply(row, known):
        return False
    return not 0 <= count < len(roles) - index or "assistant" in roles[index + 1 : index + 1 + count]


def _has_odd_vote(row: Row, known: Known) -> bool:
    scores, decisions = {vote["score"] for vote in row["reward_votes"]}, {v["decision"] for v in row["hint_votes"]}
    confidences = {vote["confidence"] for vote in (*row["reward_votes"], *row["hint_votes"])} - {None}
    is_odd = not scores <= {None, *_REWARDS} or not decisions <= {None, 1, -1}
    return is_odd or not all(0 <= confidence <= 1 for confidence in confidences)


def _is_against_the_votes(row: Row, known: Known) -> bool:
    votes = [(vote["score"], vote["confidence"]) for vote in row["reward_votes"]]
    scores = [score for score, _ in votes]
    if _has_odd_vote(row, known) or not scores or row["reward_status"] == "empty":
        return False
    return choose_reward(scores, list_confidences(votes) if known.weighed else None).reward != row["reward"]


def _find_verdict(row: Row, known: Known) -> KnownVerdict | None:
    """Return the verdict on a target's turn, with the decision of people, if any, applied."""
    verdict, decided = (known.verdicts or {}).get(row["turn_id"]), known.decisions.get(row["turn_id"], {})
    if verdict is None or not decided:
        return verdict
    hints = verdict.hints if "hint" not in decided else frozenset({decided["hint"]} - {None})
    return KnownVerdict(decided.get("reward", verdict.reward), hints)


def _has_other_length(row: Row, known: Known, column: str) -> bool:
    """Return True if the column is not null and does not have one value, or one list, per token of the reply."""
    values = row[column][0] if isinstance(row[column], tuple) else row[column]
    return values is not None and len(values) != len(row["response_ids"])


def _has_mass_over_1(support: tuple[NDArray[Any], NDArray[Any]]) -> bool:
    widths, values = support
    positions = np.repeat(np.arange(len(widths)), widths)
    return bool((np.bincount(positions, np.exp(np.minimum(values.astype(np.float64), 0))) > _MASS).any())


_LOGPROBS = ("old_logprobs", "teacher_logprobs", "unhinted_logprobs", "behavior_logprobs")
_SUPPORTS = ("support_ids", "support_old", "support_teacher")
_FLOATS, _SCORES = ([f.name for f in t.schema if pa.types.is_floating(f.type)] for t in (METRICS, VALIDATIONS))

# Table, columns, text of a finding after the column's name, and a function that is true of a wrong value (not null).
VALUES: list[tuple[str, Sequence[str], str, Callable[[Any], bool]]] = [
    ("sessions", ("line",), "is less than 1", lambda line: line < 1),
    ("sessions", ("metadata",), "is not JSON", _is_no_json),
    ("turns", ("kind",), "is neither main nor side", lambda kind: kind not in ("main", "side")),
    ("turns", ("next_role",), "is neither user nor tool", lambda role: role not in ("user", "tool")),
    ("rejected", ("line",), "is negative", lambda line: line < 0),  # 0: the whole input
    ("verdicts", ("reward",), "is not -1, 0 or 1", lambda reward: reward not in _REWARDS),
    ("verdicts", ("reward_agreement",), "is not in [0, 1]", lambda share: not 0 <= share <= 1),
    ("targets", ("reward",), "is not -1, 0 or 1", lambda reward: reward not in _REWARDS),
    ("targets", ("overlap",), "is not in [0, 1]", lambda share: not 0 <= share <= 1 + _ROUNDING),
    ("targets", ("cut_messages",), "is negative", lambda number: number < 0),
    ("targets", ("written",), "is neither a sample number (0 or more) nor -1 (an edit)", lambda number: number < EDIT),
    ("targets", ("prompt_tokens",), "is less than 1", lambda tokens: tokens < 1),
    ("targets", ("response_ids",), "is empty", lambda ids: len(ids) < 1),
    ("targets", (*_LOGPROBS, *_SUPPORTS[1:]), "holds what is no log-prob: not finite, or over 0", _has_bad_logprob),
    ("targets", _SUPPORTS[1:], "has probabilities that add up to more than 1", _has_mass_over_1),
    ("hint_checks", ("with_hint", "without_hint"), "is not in [0, 1]", lambda share: not 0 <= share <= 1),
    ("metrics", _FLOATS, "is not finite", lambda number: not math.isfinite(number)),
    ("metrics", ("clip_fraction",), "is not in [0, 1]", lambda share: not 0 <= share <= 1 + _ROUNDING),
    ("metrics", ("learning_rate", "seconds", "tokens_read"), "is negative", lambda number: number < 0),
    ("validations", _SCORES, "is not finite", lambda number: not math.isfinite(number)),
    ("validations", ("hint_kl", "kept_kl", "replies", "tokens_read"), "is negative", lambda n: n < -_ROUNDING),
    ("validations", ("forgotten", "ended", "looped", "broke_call"), "is not in [0, 1]", lambda n: not 0 <= n <= 1),
    ("replies", ("model",), "is neither before nor after", lambda model: model not in ("before", "after")),
    ("replies", ("sample",), "is negative", lambda sample: sample < 0),
    ("replies", ("finish_reason",), "is neither stop nor length", lambda reason: reason not in ("stop", "length")),
    ("scores", ("before", "after", "difference", "low", "high"), "is not finite", lambda n: not math.isfinite(n)),
    ("scores", ("count",), "is negative", lambda count: count < 0),
]

# Table, text of a finding, and a function of a row and the known facts that is true of a wrong row.
ROWS: list[tuple[str, str, Callable[[Row, Known], bool]]] = [
    ("sessions", "an unknown role", lambda row, known:
        not {message["role"] for message in row["messages"]} <= {"system", "user", "assistant", "tool"}),
    ("turns", "turn_id is not session_id:message_index", lambda row, known:
        row["turn_id"] != turn_id(row["session_id"], row["message_index"])),
    ("turns", "trainable does not fit skip_reason", lambda row, known:
        row["trainable"] != (row["skip_reason"] is None)),
    ("turns", "its session is not in the same part of sessions", lambda row, known:
        known.roles is not None and row["session_id"] not in known.roles),
    ("turns", "message_index is not that of an assistant message of its session", _is_not_reply),
    ("turns", "next_count is not the number of messages in the next state", _has_other_next_state),
    ("verdicts", "not a trainable turn of the same part of turns", lambda row, known:
        known.trainable is not None and not known.trainable.get(row["turn_id"], False)
        and not (row["reward_status"] in NOT_BY_VOTES and row["turn_id"] in known.last)),
    *[(table, "a vote is out of range", _has_odd_vote) for table in ("verdicts", "escalated")],
    ("verdicts", "reward is not what the votes add up to", _is_against_the_votes),
    ("verdicts", "reward does not fit reward_status", lambda row, known:
        row["reward_status"] != CONFLICT and (row["reward"] is None) == (row["reward_status"] in _REWARDED)),
    # A rollout copies the hints of its source run, including those that people decided.
    ("verdicts", "hint does not fit hint_status", lambda row, known:
        row["hint_status"] != REVIEWED and (row["hint"] is None) == (row["hint_status"] in ("ok", *WANTED_REPLIES))),
    ("verdicts", "hint is not one of hints", lambda row, known:
        row["hint"] is not None and row["hint"] not in row["hints"]),
    *[(table, "its turn is not in the same part of verdicts", lambda row, known:
        known.verdicts is not None and row["turn_id"] not in known.verdicts) for table in ("escalated", "targets")],
    ("targets", "reward is not that of its verdict", lambda row, known:
        (verdict := _find_verdict(row, known)) is not None
        and row["reward"] != (verdict.reward if row["written"] is None else None)),
    ("targets", "hint is not one of its verdict's", lambda row, known:
        (verdict := _find_verdict(row, known)) is not None
        and row["hint"] is not None and row["hint"] not in verdict.hints),
    ("targets", "a token id outside the vocabulary", lambda row, known: _has_bad_token(row["response_ids"], known)),
    ("targets", "a token id of the support outside the vocabulary", lambda row, known:
        row["support_ids"] is not None and _has_bad_token(row["support_ids"][1], known)),
    ("targets", "response_mask is false everywhere", lambda row, known: not row["response_mask"].any()),
    ("targets", "teacher_logprobs and hint do not go together", lambda row, known:
        (row["teacher_logprobs"] is None) != (row["hint"] is None)),
    ("targets", "support_ids and support_old do not go together", lambda row, known:
        (row["support_ids"] is None) != (row["support_old"] is None)),
    *[("targets", f"{column} is not as long as the reply", partial(_has_other_length, column=column))
      for column in ("response_mask", *_LOGPROBS, *_SUPPORTS)],
    *[("targets", f"{column} does not have K values everywhere", lambda row, known, column=column:
        row[column] is not None and bool((row[column][0] != known.width).any())) for column in _SUPPORTS],
    ("hint_checks", "its hint is not one of its verdict's", lambda row, known:
        (verdict := (known.verdicts or {}).get(row["turn_id"])) is not None and row["hint"] not in verdict.hints),
    ("metrics", "the steps are not 1, 2, 3, ...", lambda row, known: row["step"] != row["row"] + 1),
    ("metrics", "turn_ids are not as many as turns", lambda row, known: len(row["turn_ids"]) != row["turns"]),
    ("metrics", "a turn that is not a target", lambda row, known:
        bool(known.seen.targets) and not all(hash(name) in known.seen.targets for name in row["turn_ids"])),
    ("validations", "the first row is not step 0, before training", lambda row, known:
        row["row"] == 0 and row["step"] != 0),
    ("validations", "the steps do not increase", lambda row, known:
        row["row before"] is not None and row["step"] <= row["row before"]["step"]),
    ("validations", "a step that the training did not take", lambda row, known:
        known.steps is not None and row["step"] > known.steps),
    ("validations", "went back to a step that is not earlier", lambda row, known:
        row["went_back_to"] is not None and not 0 <= row["went_back_to"] < row["step"]),
    ("validations", "score is not the sum of hint_kl and kept_kl", lambda row, known:
        not math.isclose(row["score"], (row["hint_kl"] or 0.0) + (row["kept_kl"] or 0.0), abs_tol=_ROUNDING)),
    ("validations", "hint_kl is not the mean of hint_kls", lambda row, known: bool(row["hint_kls"]) and not
        math.isclose(row["hint_kl"] or 0.0, fmean(reply["kl"] for reply in row["hint_kls"]), abs_tol=_ROUNDING)),
    ("replies", "a reply of one model that the other model lacks", lambda row, known:
        (other := {"before": "after", "after": "before"}.get(row["model"])) is not None
        and (row["prompt_id"], other, row["sample"]) not in known.replies),
    ("scores", "low is more than high", lambda row, known:
        row["low"] is not None and row["high"] is not None and row["low"] > row["high"]),
]  # fmt: skip

# Table -> columns whose values together are unique in a part (for sessions: in the run), and the text of a finding.
UNIQUE = {
    "sessions": (("session_id",), "the session id is not unique in the run"),
    "turns": (("turn_id",), "the turn id is not unique"),
    "verdicts": (("turn_id",), "the turn has two verdicts"),
    "escalated": (("turn_id",), "the turn id is not unique"),
    "hint_checks": (("turn_id", "hint"), "(turn_id, hint) is not unique"),
    "targets": (("turn_id", "written"), "(turn_id, written) is not unique"),
    "replies": (("prompt_id", "model", "sample"), "(prompt_id, model, sample) is not unique"),
    "scores": (("metric", "domain"), "(metric, domain) is not unique"),
}
# Table -> how a finding names a row.
NAMES = {
    "sessions": "{session_id}", "turns": "{turn_id}", "rejected": "{source}", "verdicts": "{turn_id}",
    "escalated": "{turn_id}", "targets": "{turn_id}", "hint_checks": "{turn_id}", "metrics": "step {step}",
    "validations": "step {step}", "replies": "{prompt_id}", "scores": "{metric} {domain}",
}  # fmt: skip
# Table -> the columns to read. Of other tables, all columns are read.
COLUMNS = {
    "sessions": ["session_id", "line", "metadata", "messages.list.element.role"],
    "turns": ["turn_id", "session_id", "message_index", "next_count", "next_role", "kind", "trainable", "skip_reason"],
    "rejected": ["source", "line"],
    "verdicts": ["turn_id", "hint_votes.list.element.decision", "hint_votes.list.element.confidence",
                 "reward_votes.list.element.score", "reward_votes.list.element.confidence", "reward",
                 "reward_status", "reward_agreement", "hints", "hint", "hint_status"],
    "replies": ["prompt_id", "model", "sample", "finish_reason"],
}  # fmt: skip
