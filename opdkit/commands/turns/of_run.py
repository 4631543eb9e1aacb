"""Turns of a run in order, each with its rows in the tables of all stages; one part in memory at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from opdkit.store.joined_turns import JoinedTurn, all_joined_turns
from opdkit.store.reading import is_written, read_arrow

# Leaves out the judge's full answers, which are most of the verdicts table.
COLUMNS = {
    "turns": ["turn_id", "session_id", "message_index", "next_count", "next_role", "kind", "trainable", "skip_reason",
              "finish_reason"],
    "sessions": ["session_id", "source", "model", "messages"],
    "verdicts": ["turn_id", "reward", "reward_status", "reward_agreement", "hint", "hint_status", "hints",
                 "hint_votes.decision", "hint_votes.error", "hint_votes.confidence", "reward_votes.score",
                 "reward_votes.error", "reward_votes.confidence"],
    "hint_checks": None,  # removes the hints that `--check-hints` dropped: they trained nothing
    "targets": ["turn_id", "written", "response_mask", "old_logprobs", "teacher_logprobs", "overlap", "reward"],
}  # fmt: skip


@dataclass(frozen=True)
class ScoredReply:
    """Target: one reply that can be trained on, with its advantages."""

    written: int | None  # number of a reply that the teacher wrote, or EDIT; None: the logged one
    sampled: int  # tokens that the policy sampled
    advantages: NDArray[np.float32] | None  # teacher - old log-prob of these tokens (nats); None: no hint
    overlap: float | None
    reward: int | None


@dataclass(frozen=True)
class RunTurn(JoinedTurn):
    """Turn with its session, verdict, review and targets."""

    targets: Sequence[ScoredReply]
    state: str  # one of STATES


# States of a turn, from the last of the funnel to the first.
TRAINED, TARGET, JUDGED, TRAINABLE, SKIPPED = "trained", "target", "judged", "trainable", "not trainable"
STATES = (TRAINED, TARGET, JUDGED, TRAINABLE, SKIPPED)


def read_turns(run: Path) -> Iterator[RunTurn]:
    """Yield every turn of the finished parts, in the order of the log. Raises OpdkitError for a damaged part."""
    trained = set[str]()
    if is_written(run, "metrics", 0):
        trained.update(read_arrow(run, "metrics", 0, ["turn_ids"])["turn_ids"].combine_chunks().flatten().to_pylist())
    for turn in all_joined_turns(run, COLUMNS, stage="extract", partial=True):
        targets = []
        for row in turn.targets:
            mask, old, teacher = row["response_mask"], row["old_logprobs"], row["teacher_logprobs"]
            advantages = None if teacher is None else (teacher - old)[mask]
            targets.append(ScoredReply(row["written"], int(mask.sum()), advantages, row["overlap"], row["reward"]))
        if turn.turn_id in trained:
            state = TRAINED
        elif targets or turn.verdict is not None:
            state = TARGET if targets else JUDGED
        else:
            state = TRAINABLE if turn.turn["trainable"] else SKIPPED
        yield RunTurn(turn.session, turn.turn, turn.verdict, turn.review, targets, state)
