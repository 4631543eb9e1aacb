"""Log-probs of given tokens under a model. One path for student and teacher, so that equal inputs give equal numbers.

Shapes: B sequences, L padded length, R response tokens of one sequence, N response tokens of the batch, H hidden
size, V vocabulary. All log-probs are natural logs of the full-vocabulary softmax at temperature 1, in float32.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

# Rows of logits turned to float32 at once while scoring: at V = 152k this is 0.6 GB, whatever the reply's length.
_ROWS = 1024


@dataclass(frozen=True)
class Sequence:
    """What is scored: log p(response | prompt), both as token ids and neither empty."""

    prompt_ids: list[int]
    response_ids: list[int]

    def __post_init__(self) -> None:
        # The first token of a sequence has no probability: nothing comes before it.
        if not self.prompt_ids or not self.response_ids:
            raise ValueError("a sequence needs at least one prompt token and one response token")

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True)
class Target:
    """One reply as the student reads it, and as the teacher does, whose prompt holds the hint (None: no hint)."""

    student: Sequence
    teacher: Sequence | None


def score_session(
    student: PreTrainedModel, teacher: PreTrainedModel, targets: Items[Target], *, batch_tokens: int
) -> list[tuple[Tensor, Tensor | None]]:
    """The log-probs (float32 [R], on the CPU) of every target of one session: under the student, under the teacher.

    Equal sequences under one model are scored once. So where the hint changes nothing, teacher and student log-probs
    are the same numbers and their difference is exactly 0, whatever batch they would have been in.
    """
    wanted: dict[tuple[int, tuple[int, ...], int], tuple[PreTrainedModel, Sequence]] = {}
    keys = [
        (_request(wanted, student, t.student), None if t.teacher is None else _request(wanted, teacher, t.teacher))
        for t in targets
    ]
    scored: dict[tuple[int, tuple[int, ...], int], Tensor] = {}
    for model in [student] if teacher is student else [student, teacher]:
        mine = [(key, sequence) for key, (owner, sequence) in wanted.items() if owner is model]
        values = score(model, [sequence for _, sequence in mine], batch_tokens=batch_tokens)
        scored.update(zip([key for key, _ in mine], values, strict=True))
    return [(scored[a], None if b is None else scored[b]) for a, b in keys]


def _request(
    wanted: dict[tuple[int, tuple[int, ...], int], tuple[PreTrainedModel, Sequence]],
    model: PreTrainedModel,
    sequence: Sequence,
) -> tuple[int, tuple[int, ...], int]:
    key = (id(model), (*sequence.prompt_ids, *sequence.response_ids), len(sequence.prompt_ids))
    wanted.setdefault(key, (model, sequence))
    return key


def score(model: PreTrainedModel, sequences: Items[Sequence], *, batch_tokens: int) -> list[Tensor]:
    """log p(response token | everything before it): one float32 [R] on the CPU for each sequence, in the order given.

    Sequences of like length share a batch of at most `batch_tokens` padded tokens (a longer one goes alone). A
    log-prob that is not finite is returned as it is: the caller decides, and never sees a made-up number.
    """
    scored: list[Tensor] = [torch.empty(0)] * len(sequences)
    for batch in batches([len(s) for s in sequences], batch_tokens):
        chosen = [sequences[i] for i in batch]
        with torch.inference_mode():
            logits_NV, lengths = _native_logits(model, chosen)
            ids_N = torch.tensor([t for s in chosen for t in s.response_ids], device=logits_NV.device)
            rows = zip(logits_NV.split(_ROWS), ids_N.split(_ROWS), strict=True)
            logprobs_N = torch.cat([token_logprobs(*row) for row in rows]).cpu()
        for i, logprobs_R in zip(batch, logprobs_N.split(lengths), strict=True):
            scored[i] = logprobs_R.clone()
    return scored


def batches(lengths: Items[int], batch_tokens: int) -> list[list[int]]:
    """Indices grouped so that (members * longest) stays within `batch_tokens`, the longest first.

    The longest first, so that a batch that does not fit into memory fails at once and not at the end.
    """
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= batch_tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def response_logits(model: nn.Module, sequences: Items[Sequence]) -> tuple[Tensor, list[int]]:
    """Float32 logits [N, V] that predict the response tokens of all sequences, one after the other, and each R.

    Row t of a response comes from the position before its token t. Only these N positions go through the output
    layer. Differentiable; `model` may be wrapped (DistributedDataParallel, PEFT).
    """
    logits_NV, lengths = _native_logits(model, sequences)
    return logits_NV.float(), lengths


def token_logprobs(logits_NV: Tensor, ids_N: Tensor) -> Tensor:
    """[N] log-softmax of each row at its token. In float32 whatever the logits are: in bfloat16 it is off by 2e-2."""
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1, dtype=torch.float32)
    return logprobs_NV.gather(-1, ids_N.unsqueeze(-1)).squeeze(-1)


def _native_logits(model: nn.Module, sequences: Items[Sequence]) -> tuple[Tensor, list[int]]:
    """As `response_logits`, in the model's own dtype."""
    inner = _unwrapped(model)
    head, device = inner.get_output_embeddings(), inner.device
    ids_BL, mask_BL, rows_N, positions_N = _padded(sequences, device)

    def keep_response(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        # Before the output layer, so that what a model does after it (soft-capping, scaling) still happens.
        return (args[0][rows_N, positions_N].unsqueeze(0), *args[1:])

    handle = head.register_forward_pre_hook(keep_response)
    try:
        logits = model(input_ids=ids_BL, attention_mask=mask_BL, use_cache=False).logits
    finally:
        handle.remove()
    if logits.shape[:2] != (1, len(rows_N)):  # the model multiplies by the head's weight without calling the head
        logits = logits[rows_N, positions_N].unsqueeze(0)
    return logits[0], [len(s.response_ids) for s in sequences]


def _unwrapped(model: nn.Module) -> Any:
    while isinstance(getattr(model, "module", None), nn.Module):
        model = model.module
    return model


def _padded(sequences: Items[Sequence], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ids [B, L] and mask [B, L], padded on the right; row and position [N] of the logit that scores each token.

    What pads is id 0 under a mask of 0. The tokenizer's pad token plays no part: there may be none, or it may be the
    end token, which must stay visible where it was sampled.
    """
    longest = max(len(s) for s in sequences)
    ids = [s.prompt_ids + s.response_ids + [0] * (longest - len(s)) for s in sequences]
    mask = [[1] * len(s) + [0] * (longest - len(s)) for s in sequences]
    rows = [b for b, s in enumerate(sequences) for _ in s.response_ids]
    positions = [len(s.prompt_ids) - 1 + t for s in sequences for t in range(len(s.response_ids))]
    ids_BL, mask_BL, rows_N, positions_N = (
        torch.tensor(x, dtype=torch.long, device=device) for x in (ids, mask, rows, positions)
    )
    return ids_BL, mask_BL, rows_N, positions_N
