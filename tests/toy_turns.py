"""Turns as arrays, made up token by token: what training sets and batches are built from."""

from collections.abc import Sequence

import numpy as np

from opdkit.train.objective.terms import Objective
from opdkit.train.targets import Reply, Support
from opdkit.train.training_set import TrainingSet, build_training_set

BOTH = {"reward": 1.0, "teacher": 1.0}


def toy_turn(
    name: str = "a",
    *,
    old: Sequence[float] = (-1.0, -2.0),
    teacher: Sequence[float] | None = None,
    reward: int | None = None,
    sampled: Sequence[bool] | None = None,
    behavior: Sequence[float] | None = None,
    support: Support | None = None,
) -> Reply:
    """Return a turn of the session `name`, or with that turn id; all tokens sampled unless `sampled` says otherwise."""
    old_logprobs, teacher_logprobs, behavior_logprobs = (
        None if values is None else np.asarray(values, np.float32) for values in (old, teacher, behavior)
    )
    return Reply(
        turn_id=name if ":" in name else f"{name}:1",
        written=None,
        prompt_tokens=3,
        cut_messages=0,
        response_ids=np.arange(len(old), dtype=np.int32),
        sampled=np.ones(len(old), bool) if sampled is None else np.asarray(sampled),
        old_logprobs=old_logprobs,
        reference_logprobs=old_logprobs,
        teacher_logprobs=teacher_logprobs,
        behavior_logprobs=behavior_logprobs,
        reward=reward,
        shaped_reward=reward,
        support=support,
    )


def set_of(*turns: Reply, weights=BOTH, **options) -> TrainingSet:
    """Return the training set of these turns under one objective."""
    return build_training_set(turns, [Objective(weights, **options)], len(turns), {})
