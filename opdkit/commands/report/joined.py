"""The turns of a run in order, each joined with its rows in the tables of all stages; one part in memory at a time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

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
    sampled: int  # tokens that the policy sampled
    advantages: NDArray[np.float32] | None  # teacher - old log-prob of these tokens (nats); None: no hint
    overlap: float | None
    reward: int | None

    @property
    def strength(self) -> float | None:
        """Mean absolute advantage (nats); None where there is none."""
        return None if self.advantages is None or not len(self.advantages) else float(np.abs(self.advantages).mean())


@dataclass(frozen=True)
class JoinedTurn:
    """One turn with its session, verdict, review and targets. `state` says how far it came."""

    turn: JSON
    session: JSON
    verdict: JSON | None  # as the votes have it
    review: Review | None  # the decision in force
    targets: Sequence[Target]
    state: str

    @property
    def turn_id(self) -> str:
        return str(self.turn["turn_id"])

    @property
    def decided(self) -> JSON | None:
        """The verdict as the decision in force leaves it: the one that is trained on."""
        return None if self.verdict is None else applied(self.verdict, self.review)

    @property
    def logged_session(self) -> str:
        return logged_session_id(self.turn["session_id"])


# How far a turn came. The first is the end of the funnel.
TRAINED, TARGET, JUDGED, TRAINABLE, SKIPPED = "trained", "target", "judged", "trainable", "not trainable"
STATES = (TRAINED, TARGET, JUDGED, TRAINABLE, SKIPPED)


def has_stage(run: Path, stage: str) -> bool:
    """Return True if the stage has been started."""
    return (stage_dir(run, stage) / "manifest.json").exists()


def joined_turns(run: Path) -> Iterator[JoinedTurn]:
    """Yield every turn of the finished parts, in the order of the log. Raises OpdkitError for a damaged part."""
    trained, reviews = set[str](), in_force(run)
    if _is_written(run, "metrics", 0):
        trained.update(read_arrow(run, "metrics", 0, ["turn_ids"])["turn_ids"].combine_chunks().flatten().to_pylist())
    for part in range(part_count(run, "extract")):
        if not _is_written(run, "sessions", part):
            continue
        sessions = read_arrow(run, "sessions", part, list(SESSION_COLUMNS)).to_pylist()
        by_id = {row["session_id"]: row for row in sessions}
        verdicts = {row["turn_id"]: row for row in _verdicts(run, part)}
        targets = _targets(run, part)
        for turn in read_arrow(run, "turns", part, list(TURN_COLUMNS)).to_pylist():
            turn_id = turn["turn_id"]
            verdict, own = verdicts.get(turn_id), targets.get(turn_id, ())
            if turn_id in trained:
                state = TRAINED
            elif own or verdict is not None:
                state = TARGET if own else JUDGED
            else:
                state = TRAINABLE if turn["trainable"] else SKIPPED
            yield JoinedTurn(turn, by_id[turn["session_id"]], verdict, reviews.get(turn_id), own, state)


def _is_written(run: Path, table: str, part: int) -> bool:
    return has_stage(run, TABLES[table].stage) and part_path(run, table, part).exists()


def _verdicts(run: Path, part: int) -> Iterator[JSON]:
    """Yield the verdicts without the judge's answers in full, which are most of the table."""
    if not _is_written(run, "verdicts", part):
        return
    arrow = read_arrow(run, "verdicts", part, [*VERDICT_COLUMNS, *VOTE_COLUMNS])
    votes = {}
    for name, fields in VOTE_COLUMNS.items():
        column = arrow[name].combine_chunks()
        flat = column.flatten()
        rows = iter(pa.StructArray.from_arrays([flat.field(field) for field in fields], fields).to_pylist())
        votes[name] = [list(islice(rows, length)) for length in column.value_lengths().to_pylist()]
    for n, row in enumerate(arrow.select(VERDICT_COLUMNS).to_pylist()):
        yield row | {name: lists[n] for name, lists in votes.items()}


def _targets(run: Path, part: int) -> Mapping[str, list[Target]]:
    """Read the targets of each turn; log-probs become arrays, without a Python object for each number."""
    targets: dict[str, list[Target]] = {}
    if not _is_written(run, "targets", part):
        return targets
    arrow = read_arrow(run, "targets", part, list(TARGET_COLUMNS))
    lists = (arrow[name] for name in ("response_mask", "old_logprobs", "teacher_logprobs"))
    rest = arrow.select(["turn_id", "written", "overlap", "reward"]).to_pylist()
    for row, *scalars in zip(rest, *lists, strict=True):
        arrays = [None if scalar.values is None else scalar.values.to_numpy(zero_copy_only=False) for scalar in scalars]
        mask, old, teacher = arrays
        assert mask is not None
        assert old is not None
        advantages = None if teacher is None else (teacher - old)[mask]
        target = Target(row["written"], int(mask.sum()), advantages, row["overlap"], row["reward"])
        targets.setdefault(row["turn_id"], []).append(target)
    return targets
