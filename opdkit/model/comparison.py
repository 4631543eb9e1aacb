"""Comparison of two models on the same replies: log-probs under both, and the KL between them.

Shapes: N response tokens, n of one slice of them, V vocabulary. Nats, at temperature 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opdkit.model.memory import TooLargeError, budget_of
from opdkit.model.scoring import PaddedBatch, PromptResponse, Reader, rows_at_once, token_logprobs


@dataclass(frozen=True)
class Shift:
    """Sums of log-probs, and of KL(before || after), over the tokens of one reply or passage (nats)."""

    tokens: int
    before: float
    after: float
    kl: float = math.nan  # NaN: not computed

    @property
    def mean_kl(self) -> float | None:
        """KL per token; None where it is not finite."""
        return self.kl / self.tokens if math.isfinite(self.kl) else None


def kl_shifts(
    before: Any,
    after: Any,
    sequences: Sequence[PromptResponse],
    batch_tokens: int,
    after_reads: Sequence[PromptResponse] | None = None,
    read: Reader = PaddedBatch,
) -> list[Shift]:
    """Return for each response its log-prob under both models, and the sum of KL(before || after) at its positions.

    `after_reads` are the sequences that `after` reads, where its prompts are others; the responses are the same. The KL
    is over the whole vocabulary, at temperature 1. Equal sequences are read once: a confident model often samples the
    same reply again. `read` as in `logprobs_of`. Raises TooLargeError when memory runs out for a single sequence.
    """
    pairs = list(zip(sequences, after_reads or sequences, strict=True))
    keys = [tuple((*s.prompt_ids, -1, *s.response_ids) for s in pair) for pair in pairs]
    distinct = dict(zip(keys, pairs, strict=True))
    shift_of: dict[tuple[tuple[int, ...], ...], Shift] = {}
    items = list(distinct.items())
    lengths, budget = [max(map(len, pair)) for _, pair in items], budget_of(before, "comparing two models")
    for attempt in budget.batches(lengths, batch_tokens):
        with attempt:
            shifts = _batch_shifts((before, after), [items[i][1] for i in attempt.items], read)
            shift_of.update(zip((items[i][0] for i in attempt.items), shifts, strict=True))
        if attempt.too_large:
            raise TooLargeError(f"a prompt and reply of {lengths[attempt.items[0]]:,} tokens", "try --dtype bfloat16")
    return [shift_of[key] for key in keys]


@torch.inference_mode()
def _batch_shifts(
    models: tuple[Any, Any], pairs: Sequence[tuple[PromptResponse, PromptResponse]], read: Reader
) -> list[Shift]:
    """Return the shifts of one batch of what the two models read."""
    lengths = [len(s.response_ids) for s, _ in pairs]
    ids_N = torch.tensor([i for s, _ in pairs for i in s.response_ids])
    columns = zip(*pairs, strict=True)
    logits_of = [read(model, list(column)) for model, column in zip(models, columns, strict=True)]
    step, numbers = rows_at_once(*models), []
    for start in range(0, len(ids_N), step):
        old_nV, new_nV = (logits(slice(start, start + step)).float() for logits in logits_of)
        ids_n, new_nV = ids_N[start : start + step].to(old_nV.device), new_nV.to(old_nV.device)
        rows = token_logprobs(old_nV, ids_n), token_logprobs(new_nV, ids_n), kl_divergence(old_nV, new_nV)
        numbers.append(torch.stack(rows).double().cpu())
    parts = torch.cat(numbers, dim=1).split(lengths, dim=1)
    return [Shift(n, *part_3n.sum(1).tolist()) for n, part_3n in zip(lengths, parts, strict=True)]


def kl_divergence(logits_p_NV: Tensor, logits_q_NV: Tensor) -> Tensor:
    """Return KL(p || q) of two softmaxes over the whole vocabulary (nats, [N])."""
    p_NV, q_NV = logits_p_NV.log_softmax(-1), logits_q_NV.log_softmax(-1)
    # Where p is 0 the term is 0, also where both logits are -inf and their difference is NaN.
    return torch.where(p_NV.isneginf(), 0.0, p_NV.exp() * (p_NV - q_NV)).sum(-1)
