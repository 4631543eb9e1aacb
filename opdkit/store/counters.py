"""Footers of parts (plan, schema version, counts), and the closing line of a stage, which sums their counts."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from opdkit.console import counted
from opdkit.errors import NothingLearnedError, OpdkitError
from opdkit.store.skip_reasons import COPIES

# Keys in the footer of every part. PART and FILES were added later: a part without PART has no recorded digest.
VERSION_KEY, PLAN_KEY, COUNTERS_KEY = b"opdkit.schema_version", b"opdkit.plan", b"opdkit.counters"
PART_KEY, FILES_KEY = b"opdkit.part", b"opdkit.files"
# Inputs of a part that are not in the plan (`Stage.open(part_inputs=...)`).
INPUTS_KEY = b"opdkit.inputs"
# Counters that other commands read.
TURN_COUNT, TRAINABLE_COUNT, HINTS_CHECKED = "turns", "trainable", "hints checked"


@dataclass
class Counters:
    """Counts of one part, or of a whole stage. Mergeable.

    `counts` holds what a stage counts besides rows: name -> label -> number. The label tells kinds of one thing apart
    ("failed votes" by the error); a counter without kinds has only the label "".
    """

    rows_in: int = 0
    rows_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    counts: dict[str, Counter[str]] = field(default_factory=dict)

    def drop(self, reason: str, number: int = 1) -> None:
        """Count input rows that give no output row, by reason."""
        self.dropped[reason] += number

    def count(self, name: str, number: int = 1, *, label: str = "") -> None:
        """Add `number` to a counter of things other than rows."""
        if number:
            self.counts.setdefault(name, Counter())[label] += number

    def total(self, name: str) -> int:
        """Return the sum of a counter over its labels."""
        return self.labels(name).total()

    def labels(self, name: str) -> Counter[str]:
        """Return a counter as label -> number."""
        return self.counts.get(name, Counter())

    def merge(self, other: "Counters") -> None:
        self.rows_in += other.rows_in
        self.rows_out += other.rows_out
        self.dropped.update(other.dropped)
        self.seconds += other.seconds
        for name, numbers in other.counts.items():
            self.counts.setdefault(name, Counter()).update(numbers)

    def to_json(self) -> str:
        """Return the JSON for the footer of a part; `from_json` reads it."""
        return json.dumps({
            "rows_in": self.rows_in, "rows_out": self.rows_out, "dropped": dict(sorted(self.dropped.items())),
            "seconds": round(self.seconds, 3),
            "counts": {name: dict(sorted(numbers.items())) for name, numbers in sorted(self.counts.items())},
        })  # fmt: skip

    @classmethod
    def from_json(cls, text: bytes) -> "Counters":
        """Read the JSON of `to_json`. Footers from before counters had labels hold only the counts of rows."""
        raw = json.loads(text)
        counts = {name: Counter(numbers) for name, numbers in raw.get("counts", {}).items()}
        return cls(raw["rows_in"], raw["rows_out"], Counter(raw["dropped"]), raw["seconds"], counts)


def list_reasons(counts: Counter[str]) -> str:
    """Return the three most frequent reasons with their counts, as text; "" without any."""
    return ", ".join(f"{reason} ({n:,})" for reason, n in counts.most_common(3))


def mostly_dropped(stage: str, counters: Counters) -> list[str]:
    """Return a warning if a stage dropped more than half of its rows, not counting copies of those that it did not."""
    dropped = Counter({reason: count for reason, count in counters.dropped.items() if reason not in COPIES})
    given = counters.rows_in - sum(counters.dropped[reason] for reason in COPIES)
    if 2 * dropped.total() <= given:
        return []
    reason, count = dropped.most_common(1)[0]
    remedy = "; --max-tokens and --too-long decide what fits" if reason == "too long" else ""
    return [f"{stage} dropped most of what it was given: {reason} {count:,} of {given:,}{remedy}"]


class Nouns(NamedTuple):
    """Nouns for the rows that a stage takes, makes and drops."""

    taken: str
    made: str
    dropped: str | None = None  # None: the rows that were taken
    dropped_plural: str | None = None


# By the first word of the closing line. extract drops sessions, and also single lines of sessions that it keeps. eval
# and rollout sample several replies per prompt.
NOUNS = {
    "extract": Nouns("log session", "session", "line or session", "lines or sessions"),
    "judge": Nouns("turn", "verdict"),
    "teacher": Nouns("reply", "target"),
    "train": Nouns("target", "trained reply"),
    "eval": Nouns("prompt", "reply"),
    "rollout": Nouns("hinted turn", "reply"),
    "export": Nouns("turn", "turn"),
}


@dataclass
class Summary:
    """Counts of a stage, and its closing line."""

    stage: str
    counters: Counters
    parts_done: int
    parts: int
    where: Path | None  # None: a dry run, which writes nothing
    next: str = ""  # what to do now
    is_waiting: bool = False  # a batch of the judge has votes without an answer

    def rows(self) -> str:
        """Return the rows in, out and dropped, by reason, each with its noun."""
        c = self.counters
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in c.dropped.most_common())
        nouns = NOUNS.get(self.stage.split()[0], Nouns("row", "row"))
        gone = c.dropped.total()
        dropped = counted(gone, nouns.dropped, nouns.dropped_plural) if nouns.dropped and gone else f"{gone:,}"
        out = "expected" if self.where is None else "out"
        text = f"{self.stage}: {counted(c.rows_in, nouns.taken)} in, {counted(c.rows_out, nouns.made)} {out}, "
        return f"{text}{dropped} dropped" + (f" ({reasons})" if reasons else "")

    def line(self) -> str:
        """Return `rows` with the time and the folder; for a dry run, with "nothing written"."""
        if self.where is None:
            return f"{self.rows()}, nothing written"
        done = f", {self.parts_done} of {counted(self.parts, 'part')}" if self.parts_done < self.parts else ""
        return f"{self.rows()}{done}, {self.counters.seconds:.1f} s, {self.where}"

    def details(self) -> str:
        """Return what the stage counted besides rows, each with its labels in brackets; "" if it counted nothing."""
        texts = []
        for name, numbers in sorted(self.counters.counts.items()):
            kinds = ", ".join(f"{n:,} {label}" for label, n in sorted(numbers.items()) if label and n)
            if total := numbers.total():
                # "replies without the thinking" -> "reply without the thinking"
                one = re.sub(r"^(?!with )(.*?)(ie)?s\b", lambda plural: plural[1] + "y" * bool(plural[2]), name)
                texts.append(counted(total, one, name) + (f" ({kinds})" if kinds else ""))
        return ", ".join(texts)

    def text(self) -> str:
        """Return the details on a line of their own, if any, then the closing line, then what to do next, if known."""
        details, expected = self.details(), "expected: " if self.where is None else ""
        return "\n".join(filter(None, [details and f"{self.stage}: {expected}{details}", self.line(), self.next]))

    __str__ = text


def check_rows_left(summary: Summary, what: str) -> None:
    """Raise NothingLearnedError with `what` and the reasons if a stage is done and dropped all of its rows."""
    counters = summary.counters
    if summary.parts_done == summary.parts and counters.rows_in and not counters.rows_out:
        raise NothingLearnedError(f"nothing can be trained on: {what}. Reasons: {list_reasons(counters.dropped)}.")


def read_inputs(part: Path | Mapping[bytes, bytes]) -> dict[str, Any]:
    """Return the inputs of a part that are not in the plan, from its file or its footer; {} if there are none."""
    footer = _read_footer(part) if isinstance(part, Path) else part
    return dict(json.loads(footer.get(INPUTS_KEY, b"{}")))


def read_counters(path: Path) -> Counters:
    """Return the counters in a part's footer. Raises OpdkitError for a part that cannot be read."""
    return Counters.from_json(_read_footer(path)[COUNTERS_KEY])


def _read_footer(path: Path) -> Mapping[bytes, bytes]:
    try:
        return pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise OpdkitError(f"{path} cannot be read, `opdkit check RUN` says what to do: {error}") from error
