"""The file of labels: JSONL or CSV, one label a row, by turn or by session."""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError
from opdkit.store.reviews import in_force

KEYS = ("turn_id", "session_id")  # the first that a row has says what is labelled
VALUES = ("reward", "label")
WORDS = {
    "1": 1, "+1": 1, "1.0": 1, "good": 1, "true": 1, "yes": 1, "up": 1,
    "0": 0, "0.0": 0, "neutral": 0,
    "-1": -1, "-1.0": -1, "bad": -1, "false": -1, "no": -1, "down": -1,
}  # fmt: skip
_SHOWN = 3  # rows that an error quotes


@dataclass(frozen=True)
class Label:
    """What people say of one turn or session: -1, 0 or 1. `line` is where, from 1; of a review, its number.

    `wanted`: whether the reaction shows what the reply should have done, so that there is a hint to give; null where
    nobody says.
    """

    kind: str  # one of KEYS
    id: str
    value: int
    line: int
    wanted: bool | None = None


@dataclass(frozen=True)
class Labels:
    """The labels of a file. `set_aside` counts the other rows by reason, `examples` shows the first of them."""

    labels: list[Label]
    rows: int
    set_aside: Counter[str]
    examples: list[str]


class _UnusableError(Exception):
    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def read_labels(path: Path) -> Labels:
    """All labels of a file, one for each turn or session; rows that cannot be used are set aside and counted.

    Several equal labels of one turn are one; labels that contradict each other are none.
    Raises OpdkitError, naming lines, when the file cannot be read or no label is left.
    """
    found: dict[tuple[str, str], Label | None] = {}  # None: contradicted
    set_aside, examples, rows = Counter[str](), list[str](), 0
    for line, row in _rows(path):
        rows += 1
        try:
            label = _label(row, line)
            before = found.setdefault((label.kind, label.id), label)
            if before is None or before.value != label.value:
                found[label.kind, label.id] = None
                raise _UnusableError("contradicting labels", label.id)
            if before is not label:
                set_aside["the same label again"] += 1
        except _UnusableError as error:
            set_aside[error.reason] += 1
            if error.reason != _UNLABELLED and len(examples) < _SHOWN:
                examples.append(f"{path}:{line}: {error.reason}" + (f" ({error.detail})" if error.detail else ""))
    contradicted = sum(label is None for label in found.values())
    set_aside.update({"contradicting labels": contradicted} if contradicted else {})  # the first one of each, too
    if contradicted == len(found):
        raise OpdkitError(f"{path} has no label: " + ("; ".join(examples) or "it has no rows with a reward"))
    return Labels([label for label in found.values() if label is not None], rows, set_aside, examples)


def labels_of_reviews(run: Path) -> Labels:
    """The rewards that people decided in `opdkit review`, as labels. Raises OpdkitError where there are none."""
    decided = [review for review in in_force(run).values() if review.reward_decided and review.reward is not None]
    if not decided:
        raise OpdkitError(
            f"nobody has decided a reward in {run}: name a file of LABELS, or start `opdkit review {quote(run)}`"
        )
    labels = [Label("turn_id", r.turn_id, r.reward, r.ordinal) for r in decided if r.reward is not None]
    return Labels(labels, len(labels), Counter(), [])


_UNLABELLED = "no label yet"


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Each row with its line; a row that cannot be parsed is the error itself."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise OpdkitError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise OpdkitError(f"{path} is not UTF-8 (byte {error.start:,}); save it as UTF-8") from error
    if path.suffix == ".jsonl" or text.lstrip().startswith("{"):
        yield from _json_rows(text)
        return
    header = text.partition("\n")[0]
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count), restval="")
    names = [name.strip() for name in reader.fieldnames or []]
    if not (set(KEYS) & set(names) and set(VALUES) & set(names)):
        raise OpdkitError(
            f"{path}: its first line names the columns {', '.join(names)[:200] or '(none)'}; needed are turn_id or "
            "session_id, and reward (or label)"
        )
    reader.fieldnames = names
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise OpdkitError(f"{path}:{reader.line_num}: {error}; is a quotation mark missing?") from error


def _json_rows(text: str) -> Iterator[tuple[int, Any]]:
    for line, written in enumerate(text.split("\n"), 1):
        if written.strip():
            try:
                yield line, json.loads(written)
            except (ValueError, RecursionError):
                yield line, _UnusableError("not JSON")


def _label(row: Any, line: int) -> Label:
    if isinstance(row, _UnusableError):
        raise row
    if not isinstance(row, dict):
        raise _UnusableError("not an object")
    kind = next((key for key in KEYS if row.get(key)), None)
    if kind is None or not isinstance(row[kind], str):
        raise _UnusableError("no turn_id or session_id")
    return Label(kind, row[kind].strip(), _value(row), line, _wanted(row))


def _wanted(row: JSON) -> bool | None:
    """The column `wanted`: what was, or null, none, no or false for nothing; an empty cell says neither."""
    if "wanted" not in row or row["wanted"] == "":
        return None
    return str(row["wanted"]).strip().lower() not in ("none", "null", "false", "no")


def _value(row: JSON) -> int:
    key = next((key for key in VALUES if key in row), None)
    if key is None:
        raise _UnusableError("no reward", f"the row has {', '.join(map(str, row))[:100]}")
    written = row[key]
    word = "" if written is None else str(written).strip().lower()
    if word in ("", "none", "null"):  # "none" in a sheet of `opdkit export --to review-csv`
        raise _UnusableError(_UNLABELLED)
    if word not in WORDS:
        raise _UnusableError("no such label", f"{word[:40]!r}; -1, 0, 1, good, neutral, bad, true or false")
    return WORDS[word]
