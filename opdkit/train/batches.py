"""Replies of each optimizer step, and their tensors: pure functions of the replies and the plan.

Every process computes the steps of all processes, so that all agree on the divisors of the loss without communication.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from opdkit.model.random_streams import make_random_stream
from opdkit.train.objective.terms import Tokens
from opdkit.train.targets import Reply


@dataclass(frozen=True)
class Step:
    """Replies of one optimizer step, as indices, and the index of their objective (the phase)."""

    phase: int
    replies: list[int]


def draw_steps(
    phases: Sequence[int],
    strengths: Sequence[float],
    sessions: Sequence[str] | None,
    batch_turns: int,
    epochs: range,
    seed: int,
    order: str = "random",
) -> list[Step]:
    """Return the steps of `epochs`. Reply i belongs to `phases[i]`; its mean absolute advantage is `strengths[i]`.

    With `sessions` (the session of each reply), a step takes whole sessions until it has `batch_turns` replies or more;
    without, it takes single replies. Every epoch takes every reply once: in a new random order, or by strength, ties in
    random order (easy-first: weakest first, hard-first: strongest first). All replies of a step have the same phase.
    Steps of several phases alternate until one phase has no more. No step spans two epochs. The first step that has an
    advantage moves to the front, because it calibrates the learning rate, which the anchor alone cannot do.
    """
    # A unit is drawn as a whole: one reply, or all replies of one phase in one session.
    keys = range(len(phases)) if sessions is None else zip(phases, sessions, strict=True)
    members: dict[Any, list[int]] = {}
    for i, key in enumerate(keys):
        members.setdefault(key, []).append(i)
    units = list(members.values())
    strength = [sum(strengths[i] for i in unit) / len(unit) for unit in units]
    steps = []
    for epoch in epochs:
        drawn = torch.randperm(len(units), generator=make_random_stream(seed, "epoch", epoch)).tolist()
        if order != "random":
            drawn.sort(key=lambda u: strength[u] if order == "easy-first" else -strength[u])
        steps_by_phase = []
        for phase in sorted(set(phases)):
            units_of_phase = [units[u] for u in drawn if phases[units[u][0]] == phase]
            steps_by_phase.append([Step(phase, replies) for replies in _group_units(units_of_phase, batch_turns)])
        steps += [step for group in zip_longest(*steps_by_phase) for step in group if step]
    first = next((n for n, step in enumerate(steps) if any(strengths[i] for i in step.replies)), 0)
    return [*steps[first : first + 1], *steps[:first], *steps[first + 1 :]]


def count_steps(sessions: Sequence[str] | None, replies: int, batch_turns: int) -> int:
    """Return the number of steps per epoch: exact for single replies of one phase, an estimate for whole `sessions`."""
    sizes = [1] * replies if sessions is None else Counter(sessions).values()
    return sum(1 for _ in _group_units([[0] * size for size in sizes], batch_turns))


def _group_units(units: Sequence[list[int]], batch_turns: int) -> Iterator[list[int]]:
    """Concatenate units, in order, into groups of at least `batch_turns` replies; the last group may be smaller."""
    replies: list[int] = []
    for unit in units:
        replies = replies + unit
        if len(replies) >= batch_turns:
            yield replies
            replies = []
    if replies:
        yield replies


def collect_tokens(replies: Sequence[Reply]) -> Tokens:
    """Return the response positions of `replies`, one reply after the other."""
    sizes, nan = [len(reply.response_ids) for reply in replies], float("nan")

    def concatenate(values: Iterable[Any], missing: float = nan, dtype: type = np.float32, *width: int) -> torch.Tensor:
        """Concatenate values along N: per reply an array, one number for all of its tokens, or None (`missing`)."""
        blocks: list[NDArray[Any]] = [
            np.broadcast_to(np.asarray(missing if value is None else value, dtype), (size, *width))
            for value, size in zip(values, sizes, strict=True)
        ]
        return torch.from_numpy(np.concatenate(blocks))

    supports = [reply.support for reply in replies]
    k = max((support.ids.shape[1] for support in supports if support is not None), default=0)
    praised = [(reply.shaped_reward or 0) > 0 and support is not None and support.ids == reply.response_ids[:, None]
               for reply, support in zip(replies, supports, strict=True)]  # fmt: skip
    return Tokens(
        turn_N=torch.repeat_interleave(torch.tensor(sizes)),
        position_N=torch.cat([torch.arange(size) for size in sizes]),
        sampled_N=torch.from_numpy(np.concatenate([reply.sampled for reply in replies])),
        old_logprobs_N=concatenate(reply.old_logprobs for reply in replies),
        reference_N=concatenate(reply.reference_logprobs for reply in replies),
        teacher_logprobs_N=concatenate(reply.teacher_logprobs for reply in replies),
        behavior_logprobs_N=concatenate(reply.behavior_logprobs for reply in replies),
        reward_N=concatenate(reply.shaped_reward for reply in replies),
        supported_N=concatenate((s is not None and s.teacher is not None for s in supports), False, np.bool_),
        anchored_N=concatenate((reply.is_anchor for reply in replies), False, np.bool_),
        praised_NK=concatenate(praised, False, np.bool_, k),
        support_ids_NK=concatenate((s and s.ids for s in supports), 0, np.int64, k),
        support_old_NK=concatenate((s and s.old for s in supports), nan, np.float32, k),
        support_teacher_NK=concatenate((s and s.teacher for s in supports), nan, np.float32, k),
    )


def collect_ids(replies: Sequence[Reply], tokens: Tokens) -> torch.Tensor:
    """Return the ids [N, 1 + K] whose log-probs are read: at each position the response token, then the support."""
    own_N = torch.from_numpy(np.concatenate([reply.response_ids for reply in replies]))
    return torch.cat([own_N[:, None].to(tokens.support_ids_NK), tokens.support_ids_NK], 1)
