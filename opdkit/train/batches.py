"""Which turns an optimizer step takes, and how its forwards are shared out: pure functions of the turns and the plan.

Every process computes all of this for all processes, so that they agree on the divisors of the loss and on the number
of forwards without a word between them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from opdkit.models import token_generator
from opdkit.objective import Tokens
from opdkit.scoring import batches
from opdkit.train.targets import Turn


def optimizer_steps(count: int, batch_turns: int, epochs: int, seed: int) -> list[list[int]]:
    """Indices of the turns of each step. Every epoch has an order of its own and every turn once; no step spans two."""
    steps = []
    for epoch in range(epochs):
        order = torch.randperm(count, generator=token_generator(seed, "epoch", epoch)).tolist()
        steps += [order[i : i + batch_turns] for i in range(0, count, batch_turns)]
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


def tokens_of(turns: Sequence[Turn]) -> Tokens:
    """The response positions of `turns`, one turn after the other, as the objectives take them."""
    none = [np.full(len(turn.response_ids), np.nan, np.float32) for turn in turns]
    teacher = [n if t.teacher_logprobs is None else t.teacher_logprobs for t, n in zip(turns, none, strict=True)]
    reward = [n if t.reward is None else np.full_like(n, t.reward) for t, n in zip(turns, none, strict=True)]
    return Tokens(
        sampled_N=torch.from_numpy(np.concatenate([t.sampled for t in turns])),
        old_logprobs_N=_tensor([t.old_logprobs for t in turns]),
        teacher_logprobs_N=_tensor(teacher),
        reward_N=_tensor(reward),
    )


def _tensor(arrays: Sequence[NDArray[np.float32]]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(arrays))
