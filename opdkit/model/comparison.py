"""Comparison of two models on the same replies: log-probs under both, and the KL between them.

Shapes: N response tokens, n of those N in one slice, V vocabulary. Log-probs and KL are in nats, at temperature 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opdkit.model.memory import TooLargeError, find_budget
from opdkit.model.scoring import PromptResponse, count_rows_at_once, read_padded, token_logprobs
from opdkit.model.windows import depends_on_length


@dataclass(frozen=True)
class Shift:
    """Sums over the tokens of one reply or passage: log-probs under both models, and KL(before || after), in nats."""

    tokens: int
    before: float
    after: float
    kl: float = math.nan  # NaN: not computed


def measure_kl_shifts(before: Any, after: Any, sequences: Sequence[PromptResponse], batch_tokens: int) -> list[Shift]:
    """Return for each response its log-prob under both models, and the sum of KL(before || after) at its positions.

    The KL is over the whole vocabulary, at temperature 1. Equal sequences are read once: a confident model often
    samples the same reply again. Raises TooLargeError when memory runs out for a single sequence.
    """
    keys = [(*sequence.prompt_ids, -1, *sequence.response_ids) for sequence in sequences]
    distinct = dict(zip(keys, sequences, strict=True))
    read, shifts = list(distinct.values()), dict[int, Shift]()
    lengths, budget = list(map(len, read)), find_budget(before, "comparing two models")
    batch_tokens = 1 if depends_on_length(before) or depends_on_length(after) else batch_tokens
    for attempt in budget.batches(lengths, batch_tokens):
        with attempt:
            shifts |= zip(attempt.items, _measure_batch((before, after), [read[i] for i in attempt.items]), strict=True)
        if attempt.too_large:
            raise TooLargeError(f"a prompt and reply of {lengths[attempt.items[0]]:,} tokens", "try --dtype bfloat16")
    shift_of = {key: shifts[i] for i, key in enumerate(distinct)}
    return [shift_of[key] for key in keys]


@torch.inference_mode()
def _measure_batch(models: tuple[Any, Any], sequences: list[PromptResponse]) -> list[Shift]:
    lengths = [len(s.response_ids) for s in sequences]
    ids_N = torch.tensor([i for s in sequences for i in s.response_ids])
    logits_of = [read_padded(model, sequences) for model in models]
    step, numbers = count_rows_at_once(*models), []
    for start in range(0, len(ids_N), step):
        old_nV, new_nV = (logits(slice(start, start + step)).float() for logits in logits_of)
        ids_n, new_nV = ids_N[start : start + step].to(old_nV.device), new_nV.to(old_nV.device)
        rows = token_logprobs(old_nV, ids_n), token_logprobs(new_nV, ids_n), kl_divergence(old_nV, new_nV)
        numbers.append(torch.stack(rows).cpu().double())
    parts = torch.cat(numbers, dim=1).split(lengths, dim=1)
    return [Shift(n, *part_3n.sum(1).tolist()) for n, part_3n in zip(lengths, parts, strict=True)]


def kl_divergence(logits_p_NV: Tensor, logits_q_NV: Tensor) -> Tensor:
    """Return KL(p || q) of two softmaxes over the whole vocabulary (nats, [N])."""
    p_NV, q_NV = logits_p_NV.log_softmax(-1), logits_q_NV.log_softmax(-1)
    # A term is 0 if p is 0, even if both logits are -inf and their difference is NaN.
    return torch.where(p_NV.isneginf(), 0.0, p_NV.exp() * (p_NV - q_NV)).sum(-1)
