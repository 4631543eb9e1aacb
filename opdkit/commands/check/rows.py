"""The values of one part: keys between tables, ranges, finite numbers. Pure: Arrow in, what is wrong out.

Only the columns that are looked at are read, and one part at a time; long lists of numbers stay arrays.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from opdkit.console import counted
from opdkit.judge.votes import OUTCOME, reward_of
from opdkit.store.reviews import REVIEWED
from opdkit.store.skip_reasons import NO_NEXT
from opdkit.store.turn_ids import turn_id

_ROLES = ("system", "user", "assistant", "tool")
_REWARDS = (-1, 0, 1)
_REWARDED = ("ok", "tie", "empty", OUTCOME)  # the states of a reward that is not null
_ROUNDING = 1e-3  # log-probs are at most 0, but for rounding; an average of several teachers' rounds once more
_MASS = 1.01  # the probabilities of a support, from half-precision log-probs


@dataclass(frozen=True)
class Wrong:
    """One thing that is wrong, at its first row (from 0), and in how many rows it is."""

    what: str
    row: int
    key: str
    count: int = 1

    def text(self) -> str:
        return self.what + (f" (and in {counted(self.count - 1, 'more row')})" if self.count > 1 else "")


@dataclass
class Known:
    """What the tables of a part that were read before say; null where they could not be read."""

    roles: dict[str, list[str]] | None = None  # session -> the roles of its messages
    trainable: dict[str, bool] | None = None  # turn -> whether it may be judged
    last: set[str] = field(default_factory=set)  # turns that nobody reacted to: judged by outcomes alone
    verdicts: dict[str, tuple[int | None, frozenset[str]]] | None = None  # turn -> reward, hints
    decided: dict[str, Any] = field(default_factory=dict)  # turn -> what people decided, as the targets took it
    complete: bool = True  # every trainable turn must have a verdict: no --limit
    vocabulary: int | None = None


@dataclass
class Seen:
    """What is unique in the whole run, as hashes: keys of tables so far."""

    sessions: set[int] = field(default_factory=set)
    turns: set[int] = field(default_factory=set)
    targets: set[int] = field(default_factory=set)  # turns


class _Wrongs:
    """Collects what is wrong, first row and count."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys, self.found = keys, dict[str, Wrong]()

    def at(self, row: int, what: str) -> None:
        old = self.found.get(what)
        self.found[what] = (
            Wrong(what, row, str(self.keys[row])) if old is None else Wrong(what, old.row, old.key, old.count + 1)
        )

    def each(self, rows: Iterable[Any], what: str) -> None:
        for row in rows:
            self.at(int(row), what)

    def twice(self, keys: Iterable[Any], what: str) -> None:
        seen = set()
        for row, key in enumerate(keys):
            if key in seen:
                self.at(row, what)
            seen.add(key)


Columns = dict[str, list[Any]]
Check = Callable[[pa.Table, Known, Seen], list[Wrong]]


# -- extract --------------------------------------------------------------------------------------------------------


def sessions(table: pa.Table, known: Known, seen: Seen) -> list[Wrong]:
    """Unique ids over the whole run, roles that there are, metadata that is JSON."""
    rows = table.to_pydict()
    wrong = _Wrongs(rows["session_id"])
    known.roles = {}
    for row, (name, messages) in enumerate(zip(rows["session_id"], rows["messages"], strict=True)):
        if hash(name) in seen.sessions:
            wrong.at(row, "the session id is not unique in the run")
        seen.sessions.add(hash(name))
        known.roles[name] = [message["role"] for message in messages]
        if not set(known.roles[name]) <= set(_ROLES):
            wrong.at(row, "a role that there is not")
        if rows["line"][row] < 1:
            wrong.at(row, "line is less than 1")
        if not _is_json(rows["metadata"][row]):
            wrong.at(row, "metadata is not JSON")
    return list(wrong.found.values())


def turns(table: pa.Table, known: Known, seen: Seen) -> list[Wrong]:
    """Each turn is an assistant message of a session of its part, and what follows it is its next state."""
    rows = table.to_pylist()
    wrong = _Wrongs([row["turn_id"] for row in rows])
    wrong.twice((row["turn_id"] for row in rows), "the turn id is not unique")
    known.trainable = {row["turn_id"]: row["trainable"] for row in rows}
    known.last = {row["turn_id"] for row in rows if row["skip_reason"] == NO_NEXT}
    seen.turns.update(map(hash, known.trainable))
    for n, row in enumerate(rows):
        if row["turn_id"] != turn_id(row["session_id"], row["message_index"]):
            wrong.at(n, "turn_id is not session_id:message_index")
        if row["trainable"] != (row["skip_reason"] is None):
            wrong.at(n, "trainable does not fit skip_reason")
        if row["kind"] not in ("main", "side"):
            wrong.at(n, "kind is neither main nor side")
        if row["next_role"] not in (None, "user", "tool"):
            wrong.at(n, "next_role is neither user nor tool")
        if known.roles is not None:
            _in_its_session(n, row, known.roles.get(row["session_id"]), wrong)
    return list(wrong.found.values())


def _in_its_session(n: int, row: dict[str, Any], roles: list[str] | None, wrong: _Wrongs) -> None:
    index, count = row["message_index"], row["next_count"]
    if roles is None:
        wrong.at(n, "its session is not in the same part of sessions")
    elif not 0 <= index < len(roles) or roles[index] != "assistant":
        wrong.at(n, "message_index is no assistant message of its session")
    elif not 0 <= count < len(roles) - index or "assistant" in roles[index + 1 : index + 1 + count]:
        wrong.at(n, "next_count is not the number of messages in the next state")


def rejected(table: pa.Table, known: Known, seen: Seen) -> list[Wrong]:
    """Lines count from 1; 0 is a whole input."""
    wrong = _Wrongs(table["source"].to_pylist())
    wrong.each((n for n, line in enumerate(table["line"].to_pylist()) if line < 0), "line is negative")
    return list(wrong.found.values())


def _is_json(text: str | None) -> bool:
    try:
        json.loads("null" if text is None else text)
    except ValueError:
        return False
    return True


# -- judge ----------------------------------------------------------------------------------------------------------


def verdicts(table: pa.Table, known: Known, seen: Seen) -> list[Wrong]:
    """One verdict a trainable turn; rewards that are what the votes add up to; a hint that is one of the hints."""
    rows = table.to_pylist()
    wrong = _Wrongs([row["turn_id"] for row in rows])
    wrong.twice((row["turn_id"] for row in rows), "the turn has two verdicts")
    known.verdicts = {row["turn_id"]: (row["reward"], frozenset(row["hints"])) for row in rows}
    for n, row in enumerate(rows):
        by_outcome = row["reward_status"] == OUTCOME and row["turn_id"] in known.last
        if known.trainable is not None and not known.trainable.get(row["turn_id"], False) and not by_outcome:
            wrong.at(n, "not a trainable turn of the same part of turns")
        for what in _verdict(row):
            wrong.at(n, what)
    if known.trainable is not None and known.complete:
        left = sorted(name for name, judged in known.trainable.items() if judged and name not in known.verdicts)
        if left:
            wrong.found["left"] = Wrong("trainable turns without a verdict", -1, left[0], len(left))
    return list(wrong.found.values())


def _verdict(row: dict[str, Any]) -> Iterator[str]:
    reward, agreement = row["reward"], row["reward_agreement"]
    scores = [vote["score"] for vote in row["reward_votes"]]
    decisions = [vote["decision"] for vote in row["hint_votes"]]
    if reward not in (None, *_REWARDS):
        yield "reward is none of -1, 0, 1"
    if not set(scores) <= {None, *_REWARDS} or not set(decisions) <= {None, 1, -1}:
        yield "a vote is out of range"
    elif scores and row["reward_status"] != "empty" and reward_of(scores).reward != reward:
        yield "reward is not what the votes add up to"
    if (reward is None) == (row["reward_status"] in _REWARDED):
        yield "reward does not fit reward_status"
    if agreement is not None and not 0 <= agreement <= 1:
        yield "reward_agreement is not in [0, 1]"
    # A run of fresh replies carries hints over, and with them what people decided.
    if row["hint_status"] != REVIEWED and (row["hint"] is None) == (row["hint_status"] == "ok"):
        yield "hint does not fit hint_status"
    if row["hint"] is not None and row["hint"] not in row["hints"]:
        yield "hint is none of hints"


# -- teacher --------------------------------------------------------------------------------------------------------


def targets(table: pa.Table, known: Known, seen: Seen) -> list[Wrong]:
    """Lists as long as the reply, finite log-probs of at most 0, supports of one width, ids of the vocabulary."""
    plain = {name: table[name].to_pylist() for name in ("turn_id", "written", "reward", "hint", "overlap")}
    wrong = _Wrongs(plain["turn_id"])
    keys = list(zip(plain["turn_id"], plain["written"], strict=True))
    wrong.twice(keys, "(turn_id, written) is not unique")
    seen.targets.update(hash(name) for name in plain["turn_id"])
    for n, (name, number) in enumerate(keys):
        if number is not None and number < 0:
            wrong.at(n, "written is negative")
        if known.verdicts is not None:
            _of_its_verdict(n, _reviewed(name, known), number, plain["reward"][n], plain["hint"][n], wrong)
        if plain["reward"][n] not in (None, *_REWARDS):
            wrong.at(n, "reward is none of -1, 0, 1")
        overlap = plain["overlap"][n]
        if overlap is not None and not 0 <= overlap <= 1 + _ROUNDING:
            wrong.at(n, "overlap is not in [0, 1]")
    wrong.each(np.flatnonzero(table["prompt_tokens"].to_numpy() < 1), "prompt_tokens is less than 1")
    wrong.each(np.flatnonzero(table["cut_messages"].to_numpy() < 0), "cut_messages is negative")
    _reply(table, known, wrong)
    _supports(table, known, wrong)
    return list(wrong.found.values())


def _reviewed(name: str, known: Known) -> tuple[int | None, frozenset[str]] | None:
    """Reward and hints of a turn, as the votes and then people say."""
    verdict, decided = (known.verdicts or {}).get(name), known.decided.get(name, {})
    if verdict is None or not decided:
        return verdict
    hints = verdict[1] if "hint" not in decided else frozenset({decided["hint"]} - {None})
    return decided.get("reward", verdict[0]), hints


def _of_its_verdict(
    n: int, verdict: tuple[int | None, frozenset[str]] | None, number: int | None, reward: int | None,
    hint: str | None, wrong: _Wrongs,
) -> None:  # fmt: skip
    if verdict is None:
        wrong.at(n, "its turn is not in the same part of verdicts")
        return
    if reward != (verdict[0] if number is None else None):
        wrong.at(n, "reward is not that of its verdict")
    if hint is not None and hint not in verdict[1]:
        wrong.at(n, "hint is none of its verdict's")


def _reply(table: pa.Table, known: Known, wrong: _Wrongs) -> None:
    """The lists with one value a token of the reply."""
    lengths, ids, owner = _lists(table["response_ids"])
    wrong.each(np.flatnonzero(lengths < 1), "response_ids is empty")
    wrong.each(np.unique(owner[_no_token(ids, known)]), "a token id outside the vocabulary")
    masks, mask, mask_owner = _lists(table["response_mask"])
    wrong.each(np.flatnonzero(masks != lengths), "response_mask is not as long as the reply")
    wrong.each(sorted(set(range(len(lengths))) - set(mask_owner[mask.astype(bool)].tolist())), "nothing was sampled")
    hinted = table["hint"].is_valid().to_numpy()
    for name in ("old_logprobs", "teacher_logprobs", "unhinted_logprobs", "behavior_logprobs"):
        sizes, values, owner = _lists(table[name])
        wrong.each(np.flatnonzero((sizes >= 0) & (sizes != lengths)), f"{name} is not as long as the reply")
        wrong.each(np.unique(owner[_no_logprob(values)]), f"{name} holds what is no log-prob: not finite, or over 0")
        if name == "teacher_logprobs":
            wrong.each(np.flatnonzero((sizes >= 0) != hinted), "teacher_logprobs and hint do not go together")


def _supports(table: pa.Table, known: Known, wrong: _Wrongs) -> None:
    """K ids and log-probs at each position."""
    replies = _lists(table["response_ids"])[0]
    shapes = {}
    for name in ("support_ids", "support_old", "support_teacher"):
        positions, inner, position_owner = _lists(table[name])
        widths, values, position = _lists(inner)
        shapes[name] = (positions, widths)
        wrong.each(np.flatnonzero((positions >= 0) & (positions != replies)), f"{name} is not as long as the reply")
        if len(widths) and not (widths == widths[0]).all():
            wrong.each(np.unique(position_owner[widths != widths[0]]), f"{name} does not have K values everywhere")
        owner = position_owner[position]
        if name == "support_ids":
            wrong.each(np.unique(owner[_no_token(values, known)]), "a token id of the support outside the vocabulary")
            continue
        wrong.each(np.unique(owner[_no_logprob(values)]), f"{name} holds what is no log-prob: not finite, or over 0")
        mass = np.bincount(position, np.exp(np.minimum(values.astype(np.float64), 0)), len(widths))
        wrong.each(np.unique(position_owner[mass > _MASS]), f"{name}: probabilities that add up to more than 1")
    counts = [positions for positions, _ in shapes.values()]
    wrong.each(np.flatnonzero(counts[0] != counts[1]), "support_ids and support_old differ in length")
    if len({int(widths[0]) for _, widths in shapes.values() if len(widths)}) > 1:
        wrong.each(np.flatnonzero(counts[0] >= 0)[:1], "the supports differ in K")


def _lists(column: Any) -> tuple[NDArray[Any], Any, NDArray[Any]]:
    """Of a list column: the length of each row (-1: null), the values, and the row of each value.

    The values are an array, or, of a list of lists, the inner lists as an Arrow column.
    """
    chunk = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    lengths = chunk.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
    flat = chunk.flatten()
    owner = np.repeat(np.arange(len(lengths)), np.maximum(lengths, 0))
    return lengths, flat if pa.types.is_list(flat.type) else flat.to_numpy(zero_copy_only=False), owner


def _no_token(ids: NDArray[Any], known: Known) -> NDArray[np.bool_]:
    return (ids < 0) | (ids >= (known.vocabulary or np.iinfo(np.int32).max))


def _no_logprob(values: NDArray[Any]) -> NDArray[np.bool_]:
    return ~np.isfinite(values) | (values > _ROUNDING)


# -- train and eval -------------------------------------------------------------------------------------------------


def metrics(table: pa.Table, known: Known, seen: Seen) -> list[Wrong]:
    """Steps 1, 2, ... n; finite numbers; turns that are targets."""
    rows = table.to_pydict()
    wrong = _Wrongs([f"step {step}" for step in rows["step"]])
    wrong.each((n for n, step in enumerate(rows["step"]) if step != n + 1), "the steps are not 1, 2, 3, ...")
    for column in table.schema:
        if pa.types.is_floating(column.type):
            values = rows[column.name]
            wrong.each((n for n, v in enumerate(values) if v is not None and not math.isfinite(v)),
                       f"{column.name} is not finite")  # fmt: skip
    for n, names in enumerate(rows["turn_ids"]):
        if len(names) != rows["turns"][n]:
            wrong.at(n, "turn_ids are not as many as turns")
        if seen.targets and not all(hash(name) in seen.targets for name in names):
            wrong.at(n, "a turn that is no target")
        share = rows["clip_fraction"][n]
        if share is not None and not 0 <= share <= 1 + _ROUNDING:
            wrong.at(n, "clip_fraction is not in [0, 1]")
        if min(rows["learning_rate"][n], rows["seconds"][n], rows["tokens_read"][n]) < 0:
            wrong.at(n, "a negative learning rate, time or number of tokens")
    return list(wrong.found.values())


def replies(table: pa.Table, known: Known, seen: Seen) -> list[Wrong]:
    """Each prompt answered equally often by both models."""
    rows = table.to_pylist()
    wrong = _Wrongs([row["prompt_id"] for row in rows])
    keys = [(row["prompt_id"], row["model"], row["sample"]) for row in rows]
    wrong.twice(keys, "(prompt_id, model, sample) is not unique")
    every = set(keys)
    other = {"before": "after", "after": "before"}
    for n, (prompt, model, sample) in enumerate(keys):
        if model not in other:
            wrong.at(n, "model is neither before nor after")
        elif (prompt, other[model], sample) not in every:
            wrong.at(n, "a reply of one model that the other model lacks")
        if sample < 0:
            wrong.at(n, "sample is negative")
        if rows[n]["finish_reason"] not in ("stop", "length"):
            wrong.at(n, "finish_reason is neither stop nor length")
    return list(wrong.found.values())


def scores(table: pa.Table, known: Known, seen: Seen) -> list[Wrong]:
    """One row a metric and domain; finite numbers; intervals the right way round."""
    rows = table.to_pylist()
    wrong = _Wrongs([f"{row['metric']} {row['domain']}" for row in rows])
    wrong.twice(((row["metric"], row["domain"]) for row in rows), "(metric, domain) is not unique")
    for n, row in enumerate(rows):
        numbers = [row[name] for name in ("before", "after", "difference", "low", "high") if row[name] is not None]
        if not all(map(math.isfinite, numbers)):
            wrong.at(n, "a number that is not finite")
        if row["low"] is not None and row["high"] is not None and row["low"] > row["high"]:
            wrong.at(n, "low is more than high")
        if row["count"] < 0:
            wrong.at(n, "count is negative")
    return list(wrong.found.values())


# table -> its check, and the columns that it looks at; None is all of them.
CHECKS: dict[str, tuple[Check, list[str] | None]] = {
    "sessions": (sessions, ["session_id", "line", "metadata", "messages.list.element.role"]),
    "turns": (turns, ["turn_id", "session_id", "message_index", "next_count", "next_role", "kind", "trainable",
                      "skip_reason"]),
    "rejected": (rejected, ["source", "line"]),
    "verdicts": (verdicts, ["turn_id", "hint_votes.list.element.decision", "reward_votes.list.element.score", "reward",
                            "reward_status", "reward_agreement", "hints", "hint", "hint_status"]),
    "targets": (targets, None),
    "metrics": (metrics, None),
    "replies": (replies, ["prompt_id", "model", "sample", "finish_reason"]),
    "scores": (scores, None),
}  # fmt: skip
