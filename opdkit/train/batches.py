"""Turns of each optimizer step, and their tensors: pure functions of the turns and the plan.

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
from opdkit.train.targets import Turn


@dataclass(frozen=True)
class Step:
    """Turns of one optimizer step, as indices, and the index of their objective (the phase)."""

    phase: int
    turns: list[int]


def draw_steps(
    phases: Sequence[int],
    strengths: Sequence[float],
    sessions: Sequence[str] | None,
    batch_turns: int,
    epochs: range,
    seed: int,
    order: str = "random",
) -> list[Step]:
    """Return the steps of `epochs`. Turn i belongs to `phases[i]`; its mean absolute advantage is `strengths[i]`.

    With `sessions` (the session of each turn), a step takes whole sessions until it has at least `batch_turns` turns;
    without, it takes single turns. Every epoch takes every turn once: in a new random order, or by strength, ties in
    random order (easy-first: weakest first, hard-first: strongest first). All turns of a step have the same phase.
    Steps of several phases alternate until one phase has no more. No step spans two epochs. The first step that has an
    advantage moves to the front, because it calibrates the learning rate, which the anchor alone cannot do.
    """
    # A unit is drawn as a whole: one turn, or all turns of one phase in one session.
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
            steps_by_phase.append([Step(phase, turns) for turns in _group_units(units_of_phase, batch_turns)])
        steps += [step for group in zip_longest(*steps_by_phase) for step in group if step]
    first = next((n for n, step in enumerate(steps) if any(strengths[i] for i in step.turns)), 0)
    return [*steps[first : first + 1], *steps[:first], *steps[first + 1 :]]


def count_steps(sessions: Sequence[str] | None, turns: int, batch_turns: int) -> int:
    """Return the number of steps per epoch: exact for single turns of one phase, an estimate for whole `sessions`."""
    sizes = [1] * turns if sessions is None else Counter(sessions).values()
    return sum(1 for _ in _group_units([[0] * size for size in sizes], batch_turns))


def _group_units(units: Sequence[list[int]], batch_turns: int) -> Iterator[list[int]]:
    """Concatenate units, in order, into groups of at least `batch_turns` turns; the last group may be smaller."""
    turns: list[int] = []
    for unit in units:
        turns = turns + unit
        if len(turns) >= batch_turns:
            yield turns
            turns = []
    if turns:
        yield turns


def collect_tokens(turns: Sequence[Turn]) -> Tokens:
    """Return the response positions of `turns`, one turn after the other."""
    sizes, nan = [len(turn.response_ids) for turn in turns], float("nan")

    def concatenate(values: Iterable[Any], missing: float = nan, dtype: type = np.float32, *width: int) -> torch.Tensor:
        """Concatenate values along N: per turn an array, one number for all of its tokens, or None (`missing`)."""
        blocks: list[NDArray[Any]] = [
            np.broadcast_to(np.asarray(missing if value is None else value, dtype), (size, *width))
            for value, size in zip(values, sizes, strict=True)
        ]
        return torch.from_numpy(np.concatenate(blocks))

    supports = [turn.support for turn in turns]
    k = max((support.ids.shape[1] for support in supports if support is not None), default=0)
    praised = [(turn.shaped_reward or 0) > 0 and support is not None and support.ids == turn.response_ids[:, None]
               for turn, support in zip(turns, supports, strict=True)]  # fmt: skip
    return Tokens(
        turn_N=torch.repeat_interleave(torch.tensor(sizes)),
        position_N=torch.cat([torch.arange(size) for size in sizes]),
        sampled_N=torch.from_numpy(np.concatenate([turn.sampled for turn in turns])),
        old_logprobs_N=concatenate(turn.old_logprobs for turn in turns),
        reference_N=concatenate(turn.reference_logprobs for turn in turns),
        teacher_logprobs_N=concatenate(turn.teacher_logprobs for turn in turns),
        behavior_logprobs_N=concatenate(turn.behavior_logprobs for turn in turns),
        reward_N=concatenate(turn.shaped_reward for turn in turns),
        supported_N=concatenate((s is not None and s.teacher is not None for s in supports), False, np.bool_),
        anchored_N=concatenate((turn.is_anchor for turn in turns), False, np.bool_),
        praised_NK=concatenate(praised, False, np.bool_, k),
        support_ids_NK=concatenate((s and s.ids for s in supports), 0, np.int64, k),
        support_old_NK=concatenate((s and s.old for s in supports), nan, np.float32, k),
        support_teacher_NK=concatenate((s and s.teacher for s in supports), nan, np.float32, k),
    )


def collect_ids(turns: Sequence[Turn], tokens: Tokens) -> torch.Tensor:
    """Return the ids [N, 1 + K] whose log-probs are read: at each position the response token, then the support."""
    own_N = torch.from_numpy(np.concatenate([turn.response_ids for turn in turns]))
    return torch.cat([own_N[:, None].to(tokens.support_ids_NK), tokens.support_ids_NK], 1)
