"""What the footer of a part says of it: plan, schema version, counts; and what the counts of a stage add up to."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from opdkit.errors import OpdkitError
from opdkit.store.nouns import counted, singular

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
# How a counter is called that counts a share of another one, or of what has no counter of its own.
_SHARE = re.compile(r"(?P<whole>.+?)(?: \((?P<kind>.+)\)|: (?P<reason>.+)|, (?P<also>rewarded))")


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
        """What the stage counted beside rows, shares of a count in brackets behind it; "" where it counted nothing."""
        extra, shares = +self.counters.extra, dict[str, list[str]]()
        for name, n in sorted(extra.items()):
            found = _SHARE.fullmatch(name)
            shares.setdefault(found["whole"] if found else name, [])
            if found:
                shares[found["whole"]].append(f"{n:,} {found['kind'] or found['reason'] or found['also']}")
        return ", ".join(
            _named(extra[whole] if whole in extra else _total(extra, whole), whole)
            + (f" ({', '.join(kinds)})" if kinds else "")
            for whole, kinds in sorted(shares.items())
        )

    def text(self) -> str:
        """The closing line, with the details on a line before it."""
        details = self.details()
        return f"{self.stage}: {details}\n{self.line()}" if details else self.line()

    def __str__(self) -> str:
        return self.text()


def refuse_nothing(summary: Summary, what: str) -> None:
    """Raise OpdkitError, saying `what` and the reasons, when a whole stage is done and nothing is left of its rows."""
    counters = summary.counters
    if summary.parts_done == summary.parts and counters.rows_in and not counters.rows_out:
        reasons = ", ".join(f"{reason} ({n:,})" for reason, n in counters.dropped.most_common(3))
        raise OpdkitError(f"nothing can be trained on: {what}. Reasons: {reasons}.")


def _named(number: int, name: str) -> str:
    return f"{number:,} {singular(name) if number == 1 else name}"


def _total(extra: Counter[str], whole: str) -> int:
    """What the shares of a whole add up to that is not counted itself."""
    return sum(n for name, n in extra.items() if (found := _SHARE.fullmatch(name)) and found["whole"] == whole)


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
