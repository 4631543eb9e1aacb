"""The turns of a run, one after the other, each with what every stage has said of it; a part in memory at a time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from opdkit.config.fields import JSON
from opdkit.store import part_count, part_path, read_arrow
from opdkit.store.plans import stage_dir
from opdkit.store.reviews import Review, applied, in_force
from opdkit.store.tables import TABLES
from opdkit.store.turn_ids import logged_session_id

TURN_COLUMNS = ("turn_id", "session_id", "message_index", "next_count", "next_role", "kind", "trainable", "skip_reason",
                "finish_reason")  # fmt: skip
SESSION_COLUMNS = ("session_id", "source", "model", "messages")
VERDICT_COLUMNS = ("turn_id", "reward", "reward_status", "reward_agreement", "hint", "hint_status", "hints")
VOTE_COLUMNS = {"hint_votes": ("decision", "error"), "reward_votes": ("score", "error")}
TARGET_COLUMNS = ("turn_id", "written", "response_mask", "old_logprobs", "teacher_logprobs", "overlap", "reward")


@dataclass(frozen=True)
class Target:
    """One reply that can be trained on."""

    written: int | None  # number of a reply that the teacher wrote; None: the logged one
    sampled: int  # tokens that the policy really sampled
    advantages: NDArray[np.float32] | None  # of these, teacher - old (nats); None: no hint
    overlap: float | None
    reward: int | None

    @property
    def strength(self) -> float | None:
        """Mean absolute advantage (nats); None where there is none."""
        return None if self.advantages is None or not len(self.advantages) else float(np.abs(self.advantages).mean())


@dataclass(frozen=True)
class JoinedTurn:
    """One turn and what is known of it. `state` is how far it came, in words."""

    turn: JSON
    session: JSON
    verdict: JSON | None  # as the votes have it
    review: Review | None  # what a person decided instead
    targets: Sequence[Target]
    state: str

    @property
    def turn_id(self) -> str:
        return str(self.turn["turn_id"])

    @property
    def decided(self) -> JSON | None:
        """The verdict as the decision in force leaves it: what is trained on."""
        return None if self.verdict is None else applied(self.verdict, self.review)

    @property
    def logged_session(self) -> str:
        return logged_session_id(self.turn["session_id"])


# How far a turn came. The first is the end of the funnel.
TRAINED, TARGET, JUDGED, TRAINABLE, SKIPPED = "trained", "target", "judged", "trainable", "not trainable"
STATES = (TRAINED, TARGET, JUDGED, TRAINABLE, SKIPPED)


def has_stage(run: Path, stage: str) -> bool:
    return (stage_dir(run, stage) / "manifest.json").exists()


def joined_turns(run: Path) -> Iterator[JoinedTurn]:
    """Every turn of the finished parts, in the order of the log. Raises what `read_arrow` raises."""
    trained, reviews = _trained(run), in_force(run)
    for part in range(part_count(run, "extract")):
        if not part_path(run, "sessions", part).exists():
            continue
        sessions = {row["session_id"]: row for row in _rows(run, "sessions", part, SESSION_COLUMNS)}
        verdicts = {row["turn_id"]: row for row in _verdicts(run, part)}
        targets = _targets(run, part)
        for turn in _rows(run, "turns", part, TURN_COLUMNS):
            turn_id = turn["turn_id"]
            verdict, own = verdicts.get(turn_id), targets.get(turn_id, ())
            state = _state(turn, verdict, own, turn_id in trained)
            yield JoinedTurn(turn, sessions[turn["session_id"]], verdict, reviews.get(turn_id), own, state)


def _state(turn: JSON, verdict: JSON | None, targets: Sequence[Target], trained: bool) -> str:
    if trained:
        return TRAINED
    if targets:
        return TARGET
    if verdict is not None:
        return JUDGED
    return TRAINABLE if turn["trainable"] else SKIPPED


def _trained(run: Path) -> set[str]:
    """The turns that were in an optimizer step."""
    if not has_stage(run, "train") or not part_path(run, "metrics", 0).exists():
        return set()
    steps = read_arrow(run, "metrics", 0, ["turn_ids"])["turn_ids"]
    return set(steps.combine_chunks().flatten().to_pylist())


def _rows(run: Path, table: str, part: int, columns: Sequence[str]) -> list[JSON]:
    rows: list[JSON] = read_arrow(run, table, part, list(columns)).to_pylist()
    return rows


def _written(run: Path, table: str, part: int) -> bool:
    return has_stage(run, TABLES[table].stage) and part_path(run, table, part).exists()


def _verdicts(run: Path, part: int) -> Iterator[JSON]:
    """The verdicts without the judge's answers in full, which are most of the table."""
    if not _written(run, "verdicts", part):
        return
    arrow = read_arrow(run, "verdicts", part, [*VERDICT_COLUMNS, *VOTE_COLUMNS])
    votes = {name: _votes(arrow[name].combine_chunks(), fields) for name, fields in VOTE_COLUMNS.items()}
    for row in arrow.select(VERDICT_COLUMNS).to_pylist():
        yield row | {name: next(some) for name, some in votes.items()}


def _votes(column: pa.ListArray, fields: Sequence[str]) -> Iterator[list[JSON]]:
    votes = column.flatten()
    rows = iter(pa.StructArray.from_arrays([votes.field(name) for name in fields], fields).to_pylist())
    for length in column.value_lengths().to_pylist():
        yield list(islice(rows, length))


def _targets(run: Path, part: int) -> Mapping[str, list[Target]]:
    if not _written(run, "targets", part):
        return {}
    arrow = read_arrow(run, "targets", part, list(TARGET_COLUMNS))
    found: dict[str, list[Target]] = {}
    numbers = (_arrays(arrow[name]) for name in ("response_mask", "old_logprobs", "teacher_logprobs"))
    rest = arrow.select(["turn_id", "written", "overlap", "reward"]).to_pylist()
    for row, mask, old, teacher in zip(rest, *numbers, strict=True):
        assert mask is not None
        assert old is not None
        advantages = None if teacher is None else (teacher - old)[mask]
        target = Target(row["written"], int(mask.sum()), advantages, row["overlap"], row["reward"])
        found.setdefault(row["turn_id"], []).append(target)
    return found


def _arrays(column: pa.ChunkedArray) -> Iterator[NDArray[Any] | None]:
    """Each row of a list column as an array, without a Python object for each number."""
    for row in column:
        yield None if row.values is None else row.values.to_numpy(zero_copy_only=False)
