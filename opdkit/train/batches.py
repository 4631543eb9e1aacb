"""Which turns an optimizer step takes, and how its forwards are shared out: pure functions of the turns and the plan.

Every process computes all of this for all processes, so that they agree on the divisors of the loss and on the number
of forwards without a word between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray

from opdkit.models import token_generator
from opdkit.objective import Tokens
from opdkit.scoring import batches
from opdkit.train.targets import Turn


@dataclass(frozen=True)
class Step:
    """The turns of one optimizer step, as indices, and which of the objective's sets of weights they train under."""

    phase: int
    turns: list[int]


def optimizer_steps(
    phases: Sequence[int],
    strengths: Sequence[float],
    batch_turns: int,
    epochs: int,
    seed: int,
    order: str = "random",
) -> list[Step]:
    """The steps of a training. Turn i belongs to `phases[i]` and has the mean absolute advantage `strengths[i]`.

    Every epoch takes every turn once, in a random order of its own; or the weakest (easy-first) or the strongest
    (hard-first) first, where the random order only decides between equals. A step holds turns of one phase; where
    there are several, their steps take turns until one has no more. No step spans two epochs.
    """
    steps = []
    for epoch in range(epochs):
        turns = torch.randperm(len(phases), generator=token_generator(seed, "epoch", epoch)).tolist()
        if order != "random":
            turns.sort(key=lambda i: strengths[i] if order == "easy-first" else -strengths[i])
        lanes = []
        for phase in sorted(set(phases)):
            mine = [i for i in turns if phases[i] == phase]
            lanes.append([Step(phase, mine[i : i + batch_turns]) for i in range(0, len(mine), batch_turns)])
        steps += [step for group in zip_longest(*lanes) for step in group if step]
    return steps


def deal(lengths: Sequence[int], processes: int) -> list[list[int]]:
    """Indices for each process: the longest first, to the process that has the fewest tokens so far."""
    hands: list[list[int]] = [[] for _ in range(processes)]
    load = [0] * processes
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        process = load.index(min(load))
        hands[process].append(i)
        load[process] += lengths[i]
    return hands


def micro_batches(lengths: Sequence[int], max_tokens: int, process: int, processes: int) -> list[list[int]]:
    """The forwards of one process in a step: indices of at most `max_tokens` padded tokens (a longer turn goes alone).

    All processes have the same number: a gradient is only exchanged when all of them run a backward. An empty list
    is a forward that must not count.
    """
    groups = [
        [[hand[i] for i in group] for group in batches([lengths[i] for i in hand], max_tokens)]
        for hand in deal(lengths, processes)
    ]
    mine = groups[process]
    return mine + [[]] * (max(map(len, groups)) - len(mine))


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
