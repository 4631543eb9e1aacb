"""Log-probs of given tokens under a model. One path for student and teacher, so that equal inputs give equal numbers.

Shapes: B sequences, L padded length, R response tokens of one sequence, N response tokens of the batch, K tokens of a
support, H hidden size, V vocabulary. All log-probs are natural logs of the full-vocabulary softmax at temperature 1,
in float32.
"""

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from opdkit.model.load import input_device
from opdkit.model.memory import OutOfMemory, TooLargeError, budget_of, in_batches
from opdkit.model.output_layer import forward_replaced, is_apart

# Float32 logits in memory at once, whatever the length of the replies: 0.13 GB, 220 rows at V = 152k.
# What is computed from them (their softmax, the keys of a sort) is a small multiple of it.
_LOGITS = 1 << 25


@dataclass(frozen=True)
class PromptResponse:
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
class Mixture:
    """Models whose probabilities are averaged: log sum_j w_j p_j. The weights are positive and their sum is 1."""

    models: tuple[PreTrainedModel, ...]
    weights: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class LogprobQuery:
    """What a mixture is asked: one response, as each of its models reads it after a prompt of its own.

    `at` [R, M] are further tokens whose log-probs are wanted at each position.
    """

    sequences: tuple[PromptResponse, ...]
    at: Tensor | None = None

    @property
    def response_ids(self) -> list[int]:
        return self.sequences[0].response_ids

    def __len__(self) -> int:
        return max(len(s) for s in self.sequences)


@dataclass(frozen=True)
class Logprobs:
    """On the CPU: the response's log-probs [R], the K most likely tokens and theirs [R, K], those of `at` [R, M]."""

    logprobs: Tensor
    top_ids: Tensor
    top: Tensor
    at: Tensor


class Rows(Protocol):
    """The N response positions of some sequences under one model, one sequence after the other."""

    device: torch.device

    def logits(self, some: slice) -> Tensor:
        """[n, V] in the model's own dtype, for some of the N positions."""


Read = Callable[[PreTrainedModel, list[PromptResponse]], Rows]


def score(model: PreTrainedModel, sequences: Items[PromptResponse], *, batch_tokens: int) -> list[Tensor]:
    """log p(response token | everything before it): one float32 [R] on the CPU for each sequence, in the order given.

    See `ask`.
    """
    answers = logprobs_of(Mixture((model,)), [LogprobQuery((s,)) for s in sequences], batch_tokens=batch_tokens)
    return [answer.logprobs for answer in answers]


def logprobs_of(
    mixture: Mixture,
    questions: Items[LogprobQuery],
    *,
    batch_tokens: int,
    top: int = 0,
    vocabulary: int | None = None,
    read: Read | None = None,
) -> list[Logprobs]:
    """Answers in the order of the questions. The `top` most likely tokens are among the first `vocabulary` ids.

    Sequences of like length share a batch of at most `batch_tokens` padded tokens (a longer one goes alone), and of
    fewer where that does not fit into memory. Raises TooLargeError where a single one does not. A
    log-prob that is not finite is returned as it is: the caller decides, and never sees a made-up number. `read` has
    read the sequences already, in fewer tokens (`opdkit.model.tree_reading`).
    """
    read = read or _plainly
    size = min(_vocabulary(model) for model in mixture.models)
    size = min(size, vocabulary or size)
    answers: dict[int, Logprobs] = {}

    @torch.inference_mode()
    def answer(batch: list[int]) -> list[Logprobs]:
        return _answers(mixture, [questions[i] for i in batch], top, size, read)

    lengths = [len(q) for q in questions]
    for batch, found in in_batches(budget_of(mixture.models[0], "scoring"), lengths, batch_tokens, batches, answer):
        if isinstance(found, OutOfMemory):
            raise TooLargeError(f"a prompt and reply of {lengths[batch[0]]:,} tokens", "try --dtype bfloat16")
        answers |= zip(batch, found, strict=True)
    return [answers[i] for i in range(len(questions))]


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


def response_logits(model: nn.Module, sequences: Items[PromptResponse]) -> tuple[Tensor, list[int]]:
    """Float32 logits [N, V] that predict the response tokens of all sequences, one after the other, and each R.

    Row t of a response comes from the position before its token t. Only these N positions go through the output
    layer. Differentiable; `model` may be wrapped (DistributedDataParallel, PEFT).
    """
    logits_NV = Reading(model, sequences).logits(slice(None))
    return logits_NV.float(), [len(s.response_ids) for s in sequences]


def response_logits_by_rows(model: nn.Module, sequences: Items[PromptResponse]) -> Iterator[Tensor]:
    """As `response_logits`, some of the N rows at a time, so that long replies take no more memory than short ones.

    How many: what keeps 0.13 GB of logits. The layers below the output layer run once.
    """
    reading, rows = Reading(model, sequences, repeated=True), rows_at_once(model)
    for start in range(0, sum(len(s.response_ids) for s in sequences), rows):
        yield reading.logits(slice(start, start + rows)).float()


def rows_at_once(*models: nn.Module) -> int:
    """How many rows of logits may be in memory together: what is 0.13 GB of the largest vocabulary in float32."""
    return max(1, _LOGITS // max(map(_vocabulary, models)))


def token_logprobs(logits_NV: Tensor, ids_N: Tensor) -> Tensor:
    """[N] log-softmax of each row at its token. In float32 whatever the logits are: in bfloat16 it is off by 2e-2."""
    return _log_softmax(logits_NV).gather(-1, ids_N.unsqueeze(-1)).squeeze(-1)


def most_likely(logprobs_NV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and log-probs [N, count] of the most likely tokens of each row, most likely first, ties by the lower id.

    Logits in bfloat16 are often equal, and `torch.topk` then takes any of them, here one and there another.
    """
    size = logprobs_NV.shape[-1]
    values, ids = logprobs_NV.topk(min(count + 1, size))
    if size > count:
        tied = values[:, count - 1] == values[:, count]  # some tokens as likely as the last one were left out
        values, ids = values[:, :count], ids[:, :count]
        if tied.any():
            ids[tied] = _first_of_the_most_likely(logprobs_NV[tied], count)
    ids = ids.sort(-1).values
    values, order = logprobs_NV.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, order), values


def _first_of_the_most_likely(logprobs_NV: Tensor, count: int) -> Tensor:
    """As `most_likely`, the ids alone, exactly and slowly: by keys that order by log-prob and then by id."""
    last = logprobs_NV.shape[-1] - 1
    bits = logprobs_NV.contiguous().view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # integers in the order of the floats they were
    keys = (ordered.long() << 31) | torch.arange(last, -1, -1, device=bits.device)
    return last - (keys.topk(count).values & 0x7FFFFFFF)


def _log_softmax(logits_NV: Tensor) -> Tensor:
    return torch.log_softmax(logits_NV, dim=-1, dtype=torch.float32)


# -- one batch ------------------------------------------------------------------------------------------------------


def _plainly(model: PreTrainedModel, sequences: list[PromptResponse]) -> Rows:
    return Reading(model, sequences, repeated=True)


def _answers(mixture: Mixture, questions: Items[LogprobQuery], top: int, vocabulary: int, read: Read) -> list[Logprobs]:
    readings = [read(model, [q.sequences[j] for q in questions]) for j, model in enumerate(mixture.models)]
    lengths = [len(q.response_ids) for q in questions]
    wanted_NM = _wanted(questions).to(readings[0].device)
    rows = rows_at_once(*mixture.models)
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in range(0, sum(lengths), rows):
        some = slice(start, start + rows)
        logprobs_nV = _mixed([_log_softmax(r.logits(some))[:, :vocabulary] for r in readings], mixture.weights)
        top_ids_nK, top_nK = most_likely(logprobs_nV, top) if top else (wanted_NM[some, :0], logprobs_nV[:, :0])
        asked_nM = logprobs_nV.gather(-1, wanted_NM[some])
        found.append((asked_nM.cpu(), top_ids_nK.cpu(), top_nK.cpu()))
    asked_NM, top_ids_NK, top_NK = (torch.cat(parts) for parts in zip(*found, strict=True))
    return [
        Logprobs(
            asked_NM[rows, 0].clone(),
            top_ids_NK[rows].clone(),
            top_NK[rows].clone(),
            asked_NM[rows, 1 : 1 + (0 if q.at is None else q.at.shape[1])].clone(),
        )
        for q, rows in zip(questions, _slices(lengths), strict=True)
    ]


def _wanted(questions: Items[LogprobQuery]) -> Tensor:
    """[N, 1 + M] the response's own token and then those of `at`, as wide as the widest of them; 0 fills up."""
    width = max(0 if q.at is None else q.at.shape[1] for q in questions)
    blocks = []
    for q in questions:
        block = torch.zeros(len(q.response_ids), 1 + width, dtype=torch.long)
        block[:, 0] = torch.tensor(q.response_ids)
        if q.at is not None:
            block[:, 1 : 1 + q.at.shape[1]] = q.at
        blocks.append(block)
    return torch.cat(blocks)


def _mixed(logprobs: Items[Tensor], weights: Items[float]) -> Tensor:
    """log sum_j w_j p_j. One model alone is left as it is, bit for bit."""
    if len(logprobs) == 1:
        return logprobs[0]
    device = logprobs[0].device
    weighted = (x.to(device) + math.log(w) for x, w in zip(logprobs, weights, strict=True))
    return reduce(torch.logaddexp, weighted)


def _slices(lengths: Items[int]) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(accumulate(lengths, initial=0))]


# -- one model ------------------------------------------------------------------------------------------------------


class Reading:
    """A batch of sequences as one model reads it. Its logits can be asked for some response positions at a time.

    With `repeated` the layers below the output layer run once, whatever is asked how often.
    """

    def __init__(self, model: nn.Module, sequences: Items[PromptResponse], *, repeated: bool = False) -> None:
        self.model, self._inner = model, _unwrapped(model)
        self.head, self.device = self._inner.get_output_embeddings(), input_device(self._inner)
        self._ids_BL, self._mask_BL, self._rows_N, self._positions_N = _padded(sequences, self.device)
        self._repeated = repeated
        self._kept: list[Any] = []

    def logits(self, some: slice) -> Tensor:
        """[n, V] in the model's own dtype, for some of the N response positions."""
        rows, positions = self._rows_N[some], self._positions_N[some]

        def keep_response(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            # Before the output layer, so that what a model does after it (soft-capping, scaling) still happens.
            at = rows.to(args[0].device), positions.to(args[0].device)  # of a model on several devices, the last one
            return (args[0][at].unsqueeze(0), *args[1:])

        handle = self.head.register_forward_pre_hook(keep_response)
        try:
            with self._layers_once():
                logits = self.model(input_ids=self._ids_BL, attention_mask=self._mask_BL, use_cache=False).logits
        finally:
            handle.remove()
        if logits.shape[:2] != (1, len(rows)):  # the model multiplies by the head's weight without calling the head
            return logits[rows, positions]
        return logits[0]

    @contextmanager
    def _layers_once(self) -> Iterator[None]:
        """The layers below the output layer give what they gave the first time."""
        if not self._repeated or not is_apart(self._inner):
            yield  # nothing that could be kept apart from the output layer
            return
        body = self._inner.get_decoder()
        forward: Callable[..., Any] = body.forward

        def once(*args: Any, **kwargs: Any) -> Any:
            if not self._kept:
                self._kept.append(forward(*args, **kwargs))
            return self._kept[0]

        with forward_replaced(body, once):
            yield


def _unwrapped(model: nn.Module) -> Any:
    while isinstance(getattr(model, "module", None), nn.Module):
        model = model.module
    return model


def _vocabulary(model: nn.Module) -> int:
    return int(_unwrapped(model).get_input_embeddings().weight.shape[0])


def _padded(sequences: Items[PromptResponse], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
