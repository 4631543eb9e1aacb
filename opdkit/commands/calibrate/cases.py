"""Labels beside what the judge said."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opdkit.commands.calibrate.labels import Label
from opdkit.config.fields import JSON
from opdkit.judge.votes import OUTCOME
from opdkit.store import part_count, read_arrow
from opdkit.store.nearest import nearest_turns

_COLUMNS = ["turn_id", "reward_votes.score", "reward", "reward_status", "reward_agreement", "hint"]
_GUESSED = 3  # unknown ids for which a similar one is looked for


@dataclass(frozen=True)
class Judged:
    """What the judge said of one turn. A score of null is a vote that failed."""

    turn_id: str
    scores: tuple[int | None, ...]
    reward: int | None
    status: str
    agreement: float | None
    hinted: bool = False


@dataclass(frozen=True)
class Case:
    """A label, with the verdicts on its turn, or on the turns of its session in their order."""

    label: int
    session_id: str
    turns: list[Judged]
    wanted: bool | None = None  # as in Label


@dataclass(frozen=True)
class Cases:
    """The labels that have verdicts; the others counted by reason, unknown ids with what may have been meant."""

    cases: list[Case]
    dropped: Counter[str]
    guesses: list[str]


def match(run: Path, labels: Sequence[Label], file: Path | None = None) -> Cases:
    """Find the verdicts of every label; `file` is where they come from, none for reviews.

    Raises what `read_arrow` raises, such as for a run that is not judged.
    """
    wanted = {kind: {label.id for label in labels if label.kind == kind} for kind in ("turn_id", "session_id")}
    verdicts: dict[tuple[str, str], list[Judged]] = {}
    for judged in _verdicts(run):
        session_id = judged.turn_id.rpartition(":")[0]
        for kind, name in (("turn_id", judged.turn_id), ("session_id", session_id)):
            if name in wanted[kind]:
                verdicts.setdefault((kind, name), []).append(judged)
    cases, missing = [], []
    for label in labels:
        found = verdicts.get((label.kind, label.id))
        if found is None:
            missing.append(label)
        else:
            cases.append(Case(label.value, found[0].turn_id.rpartition(":")[0], found, label.wanted))
    dropped, guesses = _explained(run, missing, file)
    return Cases(cases, dropped, guesses)


def _verdicts(run: Path) -> Iterator[Judged]:
    for part in range(part_count(run, "judge")):
        rows: list[JSON] = read_arrow(run, "verdicts", part, _COLUMNS).to_pylist()
        for row in rows:
            if row["reward_status"] == OUTCOME:  # which no judge has said
                continue
            scores = tuple(vote["score"] for vote in row["reward_votes"])
            yield Judged(row["turn_id"], scores, row["reward"], row["reward_status"], row["reward_agreement"],
                         row["hint"] is not None)  # fmt: skip


def _explained(run: Path, missing: Sequence[Label], file: Path | None) -> tuple[Counter[str], list[str]]:
    """Why these labels have no verdict: their turn was not judged, or there is none of that name."""
    if not missing:
        return Counter(), []
    known: dict[str, set[str]] = {"turn_id": set(), "session_id": set()}
    for part in range(part_count(run, "extract")):
        rows: list[JSON] = read_arrow(run, "turns", part, ["turn_id", "session_id"]).to_pylist()
        for row in rows:
            for kind, ids in known.items():
                ids.add(row[kind])
    unknown = [label for label in missing if label.id not in known[label.kind]]
    counts = {"not judged": len(missing) - len(unknown), "unknown id": len(unknown)}
    guesses = [
        f"{f'{file}:' if file else 'review '}{label.line}: no {label.kind[:-3]} {label.id!r} in this run; "
        + nearest_turns(run, label.id)
        for label in unknown[:_GUESSED]
    ]
    return Counter({reason: n for reason, n in counts.items() if n}), guesses
