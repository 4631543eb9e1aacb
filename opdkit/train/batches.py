"""Which turns an optimizer step takes, and the tensors they make: pure functions of the turns and the plan.

Every process computes the steps of all of them, so that they agree on the divisors of the loss without a word.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray

from opdkit.model.load import token_generator
from opdkit.train.objective import Tokens
from opdkit.train.targets import Turn


@dataclass(frozen=True)
class Step:
    """The turns of one optimizer step, as indices, and which of the objective's sets of weights they train under."""

    phase: int
    turns: list[int]


def optimizer_steps(
    phases: Sequence[int],
    strengths: Sequence[float],
    sessions: Sequence[str] | None,
    batch_turns: int,
    epochs: int,
    seed: int,
    order: str = "random",
) -> list[Step]:
    """The steps of a training. Turn i belongs to `phases[i]` and has the mean absolute advantage `strengths[i]`.

    With `sessions` (that of each turn) a step takes whole sessions until it has `batch_turns` turns or more; without,
    it takes turns one by one. Every epoch takes every turn once, in a random order of its own; or the weakest
    (easy-first) or the strongest (hard-first) first, where the random order only decides between equals. A step holds
    turns of one phase; where there are several, their steps take turns until one has no more. No step spans two epochs.
    """
    units = _units(phases, sessions)
    strength = [sum(strengths[i] for i in unit) / len(unit) for unit in units]
    steps = []
    for epoch in range(epochs):
        drawn = torch.randperm(len(units), generator=token_generator(seed, "epoch", epoch)).tolist()
        if order != "random":
            drawn.sort(key=lambda u: strength[u] if order == "easy-first" else -strength[u])
        lanes = []
        for phase in sorted(set(phases)):
            mine = [units[u] for u in drawn if phases[units[u][0]] == phase]
            lanes.append([Step(phase, turns) for turns in _filled(mine, batch_turns)])
        steps += [step for group in zip_longest(*lanes) for step in group if step]
    return steps


def _units(phases: Sequence[int], sessions: Sequence[str] | None) -> list[list[int]]:
    """What is drawn at once: single turns, or the turns of one phase in one session."""
    if sessions is None:
        return [[i] for i in range(len(phases))]
    units: dict[tuple[int, str], list[int]] = {}
    for i, key in enumerate(zip(phases, sessions, strict=True)):
        units.setdefault(key, []).append(i)
    return list(units.values())


def _filled(units: Sequence[list[int]], batch_turns: int) -> Iterator[list[int]]:
    """Units one after the other, parted where there are `batch_turns` turns or more."""
    turns: list[int] = []
    for unit in units:
        turns = turns + unit
        if len(turns) >= batch_turns:
            yield turns
            turns = []
    if turns:
        yield turns


# -- turns to tensors -----------------------------------------------------------------------------------------------


def tokens_of(turns: Sequence[Turn]) -> Tokens:
    """The response positions of `turns`, one turn after the other, as the objectives take them."""
    sizes = [len(turn.response_ids) for turn in turns]
    supports = [turn.support for turn in turns]
    k = max((s.ids.shape[1] for s in supports if s is not None), default=0)

    def supported(name: str, missing: float, dtype: type) -> torch.Tensor:
        blocks = [np.full((r, k), missing, dtype) if s is None else getattr(s, name).astype(dtype)
                  for s, r in zip(supports, sizes, strict=True)]  # fmt: skip
        return torch.from_numpy(np.concatenate(blocks))

    return Tokens(
        turn_N=torch.repeat_interleave(torch.tensor(sizes)),
        position_N=torch.cat([torch.arange(r) for r in sizes]),
        sampled_N=torch.from_numpy(np.concatenate([turn.sampled for turn in turns])),
        old_logprobs_N=_numbers([turn.old_logprobs for turn in turns], sizes),
        teacher_logprobs_N=_numbers([turn.teacher_logprobs for turn in turns], sizes),
        behavior_logprobs_N=_numbers([turn.behavior_logprobs for turn in turns], sizes),
        reward_N=_numbers([turn.advantage for turn in turns], sizes),
        supported_N=torch.tensor([s is not None for s in supports]).repeat_interleave(torch.tensor(sizes)),
        support_ids_NK=supported("ids", 0, np.int64),
        support_old_NK=supported("old", np.nan, np.float32),
        support_teacher_NK=supported("teacher", np.nan, np.float32),
    )


def _numbers(values: Sequence[NDArray[np.float32] | float | None], sizes: Sequence[int]) -> torch.Tensor:
    """Float32 [N]: the values of each turn, one number for all its tokens, or NaN where it has none."""
    rows = [np.broadcast_to(np.float32(np.nan) if value is None else np.asarray(value, np.float32), (size,))
            for value, size in zip(values, sizes, strict=True)]  # fmt: skip
    return torch.from_numpy(np.concatenate(rows))
