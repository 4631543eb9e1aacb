"""What the footer of a part says of it: plan, schema version, counts; and what the counts of a stage add up to."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from opdkit.console import counted
from opdkit.errors import OpdkitError

# In the footer of every part. PART and FILES came later: a part without PART has no recorded digest.
VERSION_KEY, PLAN_KEY, COUNTERS_KEY = b"opdkit.schema_version", b"opdkit.plan", b"opdkit.counters"
PART_KEY, FILES_KEY = b"opdkit.part", b"opdkit.files"
# What a part was computed from beside the plan (`Stage.open(part_inputs=...)`).
INPUTS_KEY = b"opdkit.inputs"


@dataclass
class Counters:
    """Counts of one part, or of a whole stage. Mergeable.

    `counts` holds what a stage counts beside rows: name -> label -> number. The label tells kinds of one thing apart
    ("failed votes" by the error); a counter without kinds has the one label "".
    """

    rows_in: int = 0
    rows_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    counts: dict[str, Counter[str]] = field(default_factory=dict)

    def drop(self, reason: str, number: int = 1) -> None:
        """Count rows that were taken and give no row, by the reason."""
        self.dropped[reason] += number

    def count(self, name: str, number: int = 1, *, label: str = "") -> None:
        """Add to a counter of things beside rows."""
        if number:
            self.counts.setdefault(name, Counter())[label] += number

    def total(self, name: str) -> int:
        """Return a counter, summed over its labels."""
        return self.labels(name).total()

    def labels(self, name: str) -> Counter[str]:
        """Return a counter by its labels."""
        return self.counts.get(name, Counter())

    def merge(self, other: "Counters") -> None:
        """Add everything that `other` counted."""
        self.rows_in += other.rows_in
        self.rows_out += other.rows_out
        self.dropped.update(other.dropped)
        self.seconds += other.seconds
        for name, numbers in other.counts.items():
            self.counts.setdefault(name, Counter()).update(numbers)

    def to_json(self) -> str:
        """Return the JSON that footers hold; `from_json` reads it."""
        return json.dumps({
            "rows_in": self.rows_in, "rows_out": self.rows_out, "dropped": dict(sorted(self.dropped.items())),
            "seconds": round(self.seconds, 3),
            "counts": {name: dict(sorted(numbers.items())) for name, numbers in sorted(self.counts.items())},
        })  # fmt: skip

    @classmethod
    def from_json(cls, text: bytes) -> "Counters":
        """Read `to_json`. Footers of before counters had labels hold only the counts of rows."""
        raw = json.loads(text)
        counts = {name: Counter(numbers) for name, numbers in raw.get("counts", {}).items()}
        return cls(raw["rows_in"], raw["rows_out"], Counter(raw["dropped"]), raw["seconds"], counts)


def mostly_dropped(stage: str, counters: Counters) -> list[str]:
    """In words, when a stage kept less than half of what it was given."""
    if 2 * sum(counters.dropped.values()) <= counters.rows_in:
        return []
    reason, count = counters.dropped.most_common(1)[0]
    remedy = "; --max-tokens and --too-long decide what fits" if reason == "too long" else ""
    return [f"{stage} dropped most of what it was given: {reason} {count:,} of {counters.rows_in:,}{remedy}"]


class Nouns(NamedTuple):
    """What a stage counts: each is a row of its counters."""

    taken: str
    made: str
    dropped: str | None = None  # None: what was taken; otherwise those are no share of it
    dropped_plural: str | None = None


# By the first word of the closing line. Of a session that lines of are dropped from, the rest is read: so what extract
# drops is lines and sessions, and not what is missing from its sessions. eval and rollout sample several replies each.
NOUNS = {
    "extract": Nouns("log session", "session", "line or session", "lines or sessions"),
    "judge": Nouns("turn", "verdict"),
    "teacher": Nouns("reply", "target"),
    "train": Nouns("target", "trained reply"),
    "eval": Nouns("prompt", "reply"),
    "rollout": Nouns("hinted turn", "reply"),
    "export": Nouns("turn", "turn"),
}
# Names of counters (`Counters.count`) -> the name for a count of 1; a counter that is not here has one name.
SINGULAR = {
    "conversations": "conversation",
    "empty replies": "empty reply",
    "failed votes": "failed vote",
    "flags": "flag",
    "flags on turns rewarded +1": "flag on a turn rewarded +1",
    "hints": "hint",
    "log sessions unread": "log session unread",
    "lost replies": "lost reply",
    "outcomes": "outcome",
    "rejected hints": "rejected hint",
    "replies": "reply",
    "replies without the thinking": "reply without the thinking",
    "rewards": "reward",
    "sampled tokens": "sampled token",
    "sessions of another model": "session of another model",
    "sessions without a teacher": "session without a teacher",
    "steps": "step",
    "tokens read": "token read",
    "tokens saved": "token saved",
    "tokens scored": "token scored",
    "turns": "turn",
    "votes": "vote",
}


@dataclass
class Summary:
    """The closing line of a stage, and what tests and callers read from it."""

    stage: str
    counters: Counters
    parts_done: int
    parts: int
    where: Path | None  # None: nothing was written, since nobody asked for it

    def line(self) -> str:
        c = self.counters
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in c.dropped.most_common())
        text = f"{self.stage}: {self._rows()}" + (f" ({reasons})" if reasons else "")
        if self.where is None:
            return f"{text}, {c.seconds:.1f} s, nothing written"
        if self.parts_done < self.parts:
            text += f", {self.parts_done} of {counted(self.parts, 'part')}"
        return f"{text}, {c.seconds:.1f} s, {self.where}"

    def _rows(self) -> str:
        c, nouns = self.counters, NOUNS.get(self.stage.split()[0], Nouns("row", "row"))
        gone = c.dropped.total()
        dropped = counted(gone, nouns.dropped, nouns.dropped_plural) if nouns.dropped and gone else f"{gone:,}"
        return f"{counted(c.rows_in, nouns.taken)} in, {counted(c.rows_out, nouns.made)} out, {dropped} dropped"

    def details(self) -> str:
        """Return what the stage counted beside rows, each by its labels in brackets; "" where it counted nothing."""
        texts = []
        for name, numbers in sorted(self.counters.counts.items()):
            total = numbers.total()
            kinds = ", ".join(f"{n:,} {label}" for label, n in sorted(numbers.items()) if label and n)
            if total:
                texts.append(counted(total, SINGULAR.get(name, name), name) + (f" ({kinds})" if kinds else ""))
        return ", ".join(texts)

    def text(self) -> str:
        """The closing line, with the details on a line before it."""
        details = self.details()
        return f"{self.stage}: {details}\n{self.line()}" if details else self.line()

    def __str__(self) -> str:
        return self.text()


def check_rows_left(summary: Summary, what: str) -> None:
    """Raise OpdkitError, saying `what` and the reasons, when a whole stage is done and nothing is left of its rows."""
    counters = summary.counters
    if summary.parts_done == summary.parts and counters.rows_in and not counters.rows_out:
        reasons = ", ".join(f"{reason} ({n:,})" for reason, n in counters.dropped.most_common(3))
        raise OpdkitError(f"nothing can be trained on: {what}. Reasons: {reasons}.")


def read_inputs(path: Path) -> dict[str, Any]:
    """What a part says it was computed from beside the plan; {} where that is nothing."""
    return inputs_in(pq.read_schema(path).metadata or {})


def inputs_in(footer: Mapping[bytes, bytes]) -> dict[str, Any]:
    """The same, from a footer that has been read."""
    found: dict[str, Any] = json.loads(footer.get(INPUTS_KEY, b"{}"))
    return found


def read_counters(path: Path) -> Counters:
    """The counters in a part's footer."""
    return Counters.from_json(pq.read_schema(path).metadata[COUNTERS_KEY])
