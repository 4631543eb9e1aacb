"""What the footer of a part says of it: plan, schema version, counts; and what the counts of a stage add up to."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

# In the footer of every part. PART and FILES came later: a part without PART has no recorded digest.
VERSION_KEY, PLAN_KEY, COUNTERS_KEY = b"opdkit.schema_version", b"opdkit.plan", b"opdkit.counters"
PART_KEY, FILES_KEY = b"opdkit.part", b"opdkit.files"
# What a part was computed from beside the plan (`Stage.open(part_inputs=...)`).
INPUTS_KEY = b"opdkit.inputs"


@dataclass
class Counters:
    """What one part, or a whole stage, did. Mergeable."""

    rows_in: int = 0
    rows_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    extra: Counter[str] = field(default_factory=Counter)  # what a stage counts beside rows: tokens, sessions, votes

    def drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] += count

    def merge(self, other: "Counters") -> None:
        self.rows_in += other.rows_in
        self.rows_out += other.rows_out
        self.dropped.update(other.dropped)
        self.seconds += other.seconds
        self.extra.update(other.extra)

    def to_json(self) -> str:
        return json.dumps({
            "rows_in": self.rows_in, "rows_out": self.rows_out, "dropped": dict(sorted(self.dropped.items())),
            "seconds": round(self.seconds, 3), "extra": dict(sorted(self.extra.items())),
        })  # fmt: skip

    @classmethod
    def from_json(cls, text: bytes) -> "Counters":
        raw = json.loads(text)
        return cls(raw["rows_in"], raw["rows_out"], Counter(raw["dropped"]), raw["seconds"], Counter(raw["extra"]))


def mostly_dropped(stage: str, counters: Counters) -> list[str]:
    """In words, when a stage kept less than half of what it was given."""
    if 2 * sum(counters.dropped.values()) <= counters.rows_in:
        return []
    reason, count = counters.dropped.most_common(1)[0]
    remedy = "; --max-tokens and --too-long decide what fits" if reason == "too long" else ""
    return [f"{stage} dropped most of what it was given: {reason} {count:,} of {counters.rows_in:,}{remedy}"]


@dataclass
class Summary:
    """The closing line of a stage, and what tests and callers read from it."""

    stage: str
    counters: Counters
    parts_done: int
    parts: int
    where: Path

    def line(self) -> str:
        c = self.counters
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in c.dropped.most_common())
        text = f"{self.stage}: {c.rows_in:,} in, {c.rows_out:,} out, {sum(c.dropped.values()):,} dropped"
        text += f" ({reasons})" if reasons else ""
        if self.parts_done < self.parts:
            text += f", {self.parts_done} of {self.parts} parts"
        return f"{text}, {c.seconds:.1f} s, {self.where}"

    def details(self) -> str:
        """What the stage counted beside rows; "" where it counted nothing."""
        return ", ".join(f"{n:,} {name}" for name, n in sorted(self.counters.extra.items()))

    def text(self) -> str:
        """The closing line, with the details on a line before it."""
        details = self.details()
        return f"{self.stage}: {details}\n{self.line()}" if details else self.line()

    def __str__(self) -> str:
        return self.text()


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
