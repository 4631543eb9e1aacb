"""Labels that people gave to turns or sessions (JSONL, CSV, reviews), and the judge's verdicts on the same turns."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from opdkit.commands.turns.nearest import suggest_turns
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge.votes import NOT_BY_VOTES, choose_reward, list_confidences
from opdkit.store.plans import manifest
from opdkit.store.reading import count_parts, count_sessions_within, read_all, read_arrow, summary_of
from opdkit.store.reviews import GROUP, RANDOM, order_of_draw, read_reviews_in_force
from opdkit.store.spreadsheet import read_csv_rows, read_utf8, unescape
from opdkit.store.turn_ids import conversation_id, session_of

T = TypeVar("T")

KEYS = ("turn_id", "session_id")  # the first of these that a row has says what is labelled
VALUES = ("reward", "label")
WORDS = {
    "1": 1, "+1": 1, "good": 1, "true": 1, "yes": 1, "up": 1,
    "0": 0, "neutral": 0, "-1": -1, "bad": -1, "false": -1, "no": -1, "down": -1,
}  # fmt: skip
_UNLABELLED, UNKNOWN = "no label yet", "unknown id"
_EXAMPLES = 3  # rows quoted in an error, and unknown ids for which similar ids are suggested
_FIRST_COLUMNS = ["turn_id", "reward_votes.score", "reward_votes.confidence"]
_VERDICT_COLUMNS = [*_FIRST_COLUMNS, "reward", "reward_status", "reward_agreement", "hint"]


@dataclass(frozen=True)
class Label:
    """Label that one person gave a turn or session: -1, 0 or 1.

    `line` is the line where its row begins, from 1; for a review, its number. `wanted`: whether the reaction shows what
    the reply should have done, so that there is a hint to give. `rater`: who gave the label. Both are None if the row
    does not say.
    """

    kind: str  # one of KEYS
    id: str
    value: int
    line: int
    wanted: bool | None = None
    rater: str | None = None


@dataclass(frozen=True)
class Labels:
    """Labels of a file. `set_aside` counts the unused rows by reason; `examples` quotes the first of them."""

    labels: list[Label]
    rows: int
    set_aside: Counter[str]
    examples: list[str]


@dataclass(frozen=True)
class Judged:
    """Votes and verdict of the judge on one turn. A score of None is a vote that failed.

    `weights` are the confidences of the votes, None if the confidence of a valid vote is unknown.
    """

    session_id: str
    scores: tuple[int | None, ...]
    weights: list[float] | None
    reward: int | None
    status: str
    agreement: float | None
    hinted: bool
    is_escalated: bool = False  # the first judge of a cascade left the reward to the second one
    first_reward: int | None = None  # from the first judge's votes alone; without a cascade, the judge's reward

    @property
    def rewards(self) -> dict[str, int | None]:
        """Return the reward as stored, by plain majority of the votes, by weighed majority, and by the first judge."""
        plain, weighed = (choose_reward(self.scores, weights).reward for weights in (None, self.weights))
        return {"stored": self.reward, "plain": plain, "weighed": weighed, "first": self.first_reward}


@dataclass(frozen=True)
class Case:
    """Labels of a turn or session, and the verdict on the turn or on each turn of the session, in order."""

    labels: list[Label]
    turns: list[Judged]

    @property
    def key(self) -> tuple[str, str]:
        return self.labels[0].kind, self.labels[0].id

    @property
    def conversation(self) -> str:
        """Return the id of the conversation, which is resampled as one."""
        return conversation_id(self.turns[0].session_id)

    @cached_property
    def label(self) -> int | None:
        """Return the most frequent label; None on a tie."""
        return _find_most_frequent(label.value for label in self.labels)

    @cached_property
    def wanted(self) -> bool | None:
        """Return whether something was wanted, by majority of the labels that say; None on a tie or if none says."""
        return _find_most_frequent(label.wanted for label in self.labels if label.wanted is not None)


def _find_most_frequent(values: Iterable[T]) -> T | None:
    """Return the value that occurs most often; None without values or on a tie."""
    ranked = Counter(values).most_common(2)
    is_tied = len(ranked) == 2 and ranked[0][1] == ranked[1][1]
    return ranked[0][0] if ranked and not is_tied else None


class _UnusableError(Exception):
    """Raised for a row without a usable label. Its arguments are the reason, and any details of the row."""


def read_labels(path: Path) -> Labels:
    """Read the labels of a file; rows that cannot be used are set aside and counted.

    Several rows of one turn are labels of several people. If rows name the same rater, equal labels count once, and
    labels that contradict each other are all set aside. Raises ConfigError, naming lines, if the file cannot be read or
    no label is left.
    """
    labels: dict[tuple[str, ...], Label | None] = {}  # None: contradicted
    set_aside, examples, rows = Counter[str](), list[str](), 0
    for line, row in _rows(path):
        rows += 1
        try:
            label = _label(row, line)
            # Each row without a rater counts as another person.
            key = (label.kind, label.id, *([str(line)] if label.rater is None else ["rater", label.rater]))
            before = labels.setdefault(key, label)
            if before is None or before.value != label.value:
                labels[key] = None
                raise _UnusableError("contradicting labels", label.id)
            if before is not label:
                set_aside["the same label again"] += 1
        except _UnusableError as error:
            reason, *details = error.args
            set_aside[reason] += 1
            if reason != _UNLABELLED and len(examples) < _EXAMPLES:
                examples.append(f"{path}:{line}: {reason}" + "".join(f" ({detail})" for detail in details))
    contradicted = sum(label is None for label in labels.values())
    set_aside.update({"contradicting labels": contradicted} if contradicted else {})  # the first label of each, too
    if contradicted == len(labels):
        raise ConfigError(f"{path} has no label: " + ("; ".join(examples) or "it has no rows with a reward"))
    return Labels([label for label in labels.values() if label is not None], rows, set_aside, examples)


def read_review_labels(run: Path) -> Labels:
    """Return the rewards that people decided on in `opdkit review`, as labels: those of a random sample of turns.

    The sample is the start of `order_of_draw`, up to the last turn that a reviewer was shown at random. A reviewer who
    keeps the reward labels the turn with the reward of the votes. If nobody has reached the sample, all decisions but
    those on groups are labels, and `examples` holds a warning. Raises OpdkitError if there are no labels.
    """
    decided = {name: review for name, review in read_reviews_in_force(run).items() if review.chosen != GROUP}
    order = order_of_draw(row["turn_id"] for row in read_all(run, "verdicts", ["turn_id"]))
    drawn = [n for n, name in enumerate(order, 1) if name in decided and decided[name].chosen == RANDOM]
    sample = order[: drawn[-1]] if drawn else list(decided)
    set_aside, labels = Counter[str](), list[Label]()
    for name in sample:
        review = decided.get(name)
        value = None if review is None else review.reward if review.reward_decided else review.voted_reward
        if review is None or value is None:
            set_aside["drawn, but not decided" if review is None else "no reward"] += 1
        else:
            labels.append(Label("turn_id", name, value, review.ordinal))
    if not labels:
        raise OpdkitError(f"nobody has decided a reward in {run}: name a file of LABELS, or start "
                          f"`opdkit review {quote(run)}`")  # fmt: skip
    if picked := len(decided.keys() - set(sample)):
        set_aside["not drawn at random"] = picked
    biased = ("nobody has come to the random sample of `opdkit review` yet: these turns were picked, or are those of "
              "which the judge is least certain, and the figures are of such turns only")  # fmt: skip
    return Labels(labels, len(labels) + set_aside.total(), set_aside, [] if drawn else [biased])


def _rows(path: Path) -> Iterator[tuple[int, JSON | str]]:
    """Yield (line, row). A row of CSV is its cells by column, of JSONL the text of its line."""
    text = read_utf8(path)
    if text.lstrip().startswith("[") or text.lstrip().partition("\n")[0].strip() == "{":
        raise ConfigError(f"{path} is a single JSON document: write one object per line")
    if path.suffix == ".jsonl" or text.lstrip().startswith("{"):
        yield from ((line, written) for line, written in enumerate(text.split("\n"), 1) if written.strip())
        return
    rows = read_csv_rows(path, text, strict=False)
    _, header = next(rows, (1, []))
    names = [name.strip() for name in header]
    if not (set(KEYS) & set(names) and set(VALUES) & set(names)):
        raise ConfigError(f"{path}: its first line names the columns {', '.join(names)[:200] or '(none)'}; needed are "
                          "turn_id or session_id, and reward (or label)")  # fmt: skip
    if twice := next((name for name in (*KEYS, *VALUES, "rater", "wanted") if names.count(name) > 1), None):
        raise ConfigError(f"{path}: the column {twice} comes twice; write the labels of several people into rows")
    for line, cells in rows:
        # In a sheet of `opdkit export --to review-csv`, an id may begin with an added apostrophe.
        yield line, dict.fromkeys(names, "") | dict(zip(names, map(unescape, cells), strict=False))


def _label(row: JSON | str, line: int) -> Label:
    """Return the label of a row. Raises _UnusableError."""
    fields: Any = row
    if isinstance(row, str):
        try:
            fields = json.loads(row)
        except (ValueError, RecursionError):
            raise _UnusableError("not JSON") from None
    if not isinstance(fields, dict):
        raise _UnusableError("not an object")
    kind = next((key for key in KEYS if fields.get(key)), None)
    if kind is None or not isinstance(fields[kind], str):
        raise _UnusableError("no turn_id or session_id")
    cells = ["" if fields[key] is None else str(fields[key]).strip().lower() for key in VALUES if key in fields]
    if not cells:
        raise _UnusableError("no reward", f"the row has {', '.join(map(str, fields))[:100]}")
    # In a sheet of `opdkit export --to review-csv`, "none" is no reward, and "accept" confirms the reward of the votes.
    if str(fields.get("action", "")).strip().lower() == "accept":
        cells.append(str(fields.get("voted_reward", "")).strip().lower())
    word = next((cell for cell in cells if cell not in ("", "none", "null")), None)
    if word is None:
        raise _UnusableError(_UNLABELLED)
    word = re.sub(r"[.,]0*\Z", "", word.replace("\u2212", "-"))  # a spreadsheet may write 1 as 1.0 or 1,0
    if word not in WORDS:
        raise _UnusableError("no such label", f"{word[:40]!r}; -1, 0, 1, good, neutral, bad, true or false")
    # The column `wanted` says what was wanted; null, none, no, false or 0 mean nothing; an empty cell means unknown.
    cell = str(fields.get("wanted", "")).strip().lower()
    wanted = cell not in ("none", "null", "no", "false", "0") if cell else None
    rater = "" if fields.get("rater") is None else str(fields["rater"]).strip()
    return Label(kind, fields[kind].strip(), WORDS[word], line, wanted, rater or None)


def match_verdicts(run: Path, labels: list[Label], file: Path | None) -> tuple[list[Case], Counter[str], list[str]]:
    """Return the cases, counts of the labels without a verdict by reason, and suggestions for some unknown ids.

    `file` is where the labels come from, None for reviews. Raises what `read_arrow` raises, for example if the run is
    not judged.
    """
    labelled: dict[tuple[str, str], list[Label]] = {}
    for label in labels:
        labelled.setdefault((label.kind, label.id), []).append(label)
    verdicts: dict[tuple[str, str], list[Judged]] = {}
    not_by_votes = set[str]()  # turns with a reward from the log, and their sessions
    plan = manifest(run, "judge")["plan"]
    is_cascade, is_weighed = "escalated" in plan["schemas"], plan["config"].get("weigh_votes")
    for part in range(count_parts(run, "judge")):
        left = read_arrow(run, "escalated", part, _FIRST_COLUMNS).to_pylist() if is_cascade else []
        votes_of_first = {row["turn_id"]: _read_votes(row) for row in left}
        for row in read_arrow(run, "verdicts", part, _VERDICT_COLUMNS).to_pylist():
            if row["reward_status"] in NOT_BY_VOTES:
                not_by_votes.update((row["turn_id"], session_of(row["turn_id"])))
                continue
            votes, first = _read_votes(row), votes_of_first.get(row["turn_id"])
            session_id, scores = session_of(row["turn_id"]), tuple(score for score, _ in votes)
            weights = list_confidences(first) if first and is_weighed else None
            first_reward = choose_reward([score for score, _ in first], weights).reward if first else row["reward"]
            judged = Judged(session_id, scores, list_confidences(votes), row["reward"], row["reward_status"],
                            row["reward_agreement"], row["hint"] is not None, bool(first), first_reward)  # fmt: skip
            for key in (("turn_id", row["turn_id"]), ("session_id", session_id)):
                if key in labelled:
                    verdicts.setdefault(key, []).append(judged)
    cases = [Case(given, verdicts[key]) for key, given in labelled.items() if key in verdicts]
    missing = [given for key, given in labelled.items() if key not in verdicts]
    if not missing:
        return cases, Counter(), []
    reasons, guesses = Counter[str](), list[str]()
    why = explain_missing(run, [given[0] for given in missing], not_by_votes)
    for given, reason in zip(missing, why, strict=True):
        reasons[reason] += len(given)
        if reason == UNKNOWN and len(guesses) < _EXAMPLES:
            label, kind = given[0], given[0].kind.removesuffix("_id")
            where = f"{file}:{label.line}" if file else f"review {label.line}"
            guesses.append(f"{where}: no {kind} {label.id!r} in this run; {suggest_turns(run, label.id, kind)}")
    return cases, reasons, guesses


def _read_votes(row: JSON) -> list[tuple[int | None, float | None]]:
    return [(vote["score"], vote["confidence"]) for vote in row["reward_votes"]]


def explain_missing(run: Path, labels: list[Label], not_by_votes: Set[str]) -> Iterator[str]:
    """Yield why each of these labels has no verdict of votes. `not_by_votes`: ids of those with rewards from the log.

    A run does not store the sessions that extract left out, so an unknown id of a known input counts as left out.
    """
    turns, sessions = set[str](), dict[str, bool]()  # session -> within the judge's --limit
    limit, parts = manifest(run, "judge")["plan"]["config"].get("limit"), count_parts(run, "extract")
    for part in range(parts):
        turns.update(read_arrow(run, "turns", part, ["turn_id"])["turn_id"].to_pylist())
        names = read_arrow(run, "sessions", part, ["session_id"])["session_id"].to_pylist()
        within = count_sessions_within(run, part, limit)
        sessions |= {name: within is None or n < within for n, name in enumerate(names)}
    extract = manifest(run, "extract")["plan"]
    read, most = summary_of(run, "extract").counters.rows_in, extract["config"].get("limit")
    left_out = [flag for flag, given in (("--limit", most and read >= most),
                                         ("--filter", extract["config"].get("filter"))) if given]  # fmt: skip
    for label in labels:
        session = label.id if label.kind == "session_id" else session_of(label.id)
        if label.id in not_by_votes:
            yield "reward from the log"
        elif label.id in (sessions if label.kind == "session_id" else turns):
            yield "not judged" if sessions[session] else "not judged (--limit)"
        elif left_out and session not in sessions and session.partition(":")[0] in extract["inputs"]:
            yield f"not extracted ({', '.join(left_out)})"
        else:
            yield UNKNOWN
