"""Log-probs of given tokens under a model. Student and teacher share this code, so equal inputs give equal numbers.

    logprobs_of(Mixture((model,)), [LogprobQuery((PromptResponse(prompt_ids, response_ids),))], batch_tokens=16384)

Shapes: B sequences of a batch, L padded length, R response tokens of one sequence, N response tokens of the batch, n of
a slice of those N, K most likely tokens, M further tokens, V vocabulary. All log-probs are natural logs of the softmax
over the whole vocabulary at temperature 1, in float32.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from opdkit.model.load import find_input_device
from opdkit.model.memory import TooLargeError, find_budget, without_gradients
from opdkit.model.output_layer import OutputLayer, find_decoder, has_separate_output_layer
from opdkit.model.windows import depends_on_length

# Most float32 logits held at once, however long the replies: 0.13 GB (220 rows at V = 152k), or 1/64 of a GPU's memory
# if that is more. Tensors computed from them (softmax, sort keys) take a small multiple of that.
_LOGITS = 1 << 25
_SHARE_OF_GPU = 64


@dataclass(frozen=True)
class PromptResponse:
    """Prompt and the response that follows it, as token ids; neither is empty. Scored as log p(response | prompt)."""

    prompt_ids: list[int]
    response_ids: list[int]

    def __post_init__(self) -> None:
        """Raise ValueError for an empty part: without a prompt, the first token has no probability."""
        if not self.prompt_ids or not self.response_ids:
            raise ValueError("a sequence needs at least one prompt token and one response token")

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True)
class Mixture:
    """Models whose probabilities are averaged: log sum_j w_j p_j, with positive weights w_j that sum to 1."""

    models: tuple[PreTrainedModel, ...]
    weights: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class LogprobQuery:
    """Query for the log-probs of one response. `sequences` holds the prompt and response for each model of a mixture.

    `at` [R, M] are further token ids whose log-probs are requested at each position of the response.
    """

    sequences: tuple[PromptResponse, ...]
    at: Tensor | None = None


@dataclass(frozen=True)
class Logprobs:
    """Result of a query, on the CPU: log-probs in float32, token ids in int64."""

    logprobs: Tensor  # [R] of the response's own tokens
    top_ids: Tensor  # [R, K] most likely first
    top: Tensor  # [R, K] log-probs of top_ids
    at: Tensor  # [R, M]


class Reader:
    """Reader of sequences, here in padded batches; `opdkit.model.tree_reading` reads common prefixes once."""

    def batch(self, model: PreTrainedModel, sequences: Sequence[PromptResponse]) -> Callable[[slice], Tensor]:
        """Return a function from a slice of the N response positions to logits [n, V] in the model's own dtype.

        The N positions are ordered by sequence.
        """
        return read_padded(model, sequences)

    def length(self, _model: PreTrainedModel, sequence: PromptResponse) -> int:
        """Return how many positions of a sequence count in a batch: those that it still reads, or turns into logits."""
        return len(sequence)


_IN_PADDED_BATCHES = Reader()


def read_padded(model: nn.Module, sequences: Sequence[PromptResponse]) -> Callable[[slice], Tensor]:
    """Read sequences side by side, padded on the right. Return what `Reader.batch` returns; differentiable."""
    if has_separate_output_layer(model):
        hidden_NH, output_layer = read_chains(model, [[sequence] for sequence in sequences])
        return lambda rows: output_layer(hidden_NH[rows])
    ids_BL, rows_N, positions_N = _pad([[sequence] for sequence in sequences], find_input_device(model))
    logits_NV = model(input_ids=ids_BL, use_cache=False).logits[rows_N, positions_N]
    return lambda rows: logits_NV[rows]


def read_chains(model: nn.Module, chains: Sequence[Sequence[PromptResponse]]) -> tuple[Tensor, OutputLayer]:
    """Return the hidden states [N, H] that predict the response tokens, and the layer that turns them into logits.

    Each sequence of a chain begins with the sequence before it, so only the last is read. Any causal model can do that:
    there is no mask, and padding comes last. Differentiable.
    """
    ids_BL, rows_N, positions_N = _pad(chains, find_input_device(model))
    output = find_decoder(model)(input_ids=ids_BL, use_cache=False)
    hidden_BLH = output.last_hidden_state  # on the last device if the model is on several
    at = rows_N.to(hidden_BLH.device), positions_N.to(hidden_BLH.device)
    return hidden_BLH[at], OutputLayer(model, output)


def _pad(chains: Sequence[Sequence[PromptResponse]], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the token ids [B, L] of chains, and row and position [N] of the token before each response token.

    Padding is id 0. It comes last, so a causal model needs no mask for it.
    """
    longest = max(len(chain[-1]) for chain in chains)
    ids = [s.prompt_ids + s.response_ids + [0] * (longest - len(s)) for *_, s in chains]
    at = [(b, len(s.prompt_ids) - 1 + t) for b, chain in enumerate(chains) for s in chain
          for t in range(len(s.response_ids))]  # fmt: skip
    rows_N, positions_N = torch.tensor(at, device=device).unbind(-1)
    return torch.tensor(ids, device=device), rows_N, positions_N


def response_logits(model: nn.Module, sequences: Sequence[PromptResponse]) -> Tensor:
    """Return float32 logits [N, V] that predict the response tokens, ordered by sequence.

    If the output layer is separate, only these N positions go through it. Differentiable.
    """
    return read_padded(model, sequences)(slice(None)).float()


def count_rows_at_once(*models: nn.Module) -> int:
    """Return how many rows of float32 logits may be held at once, for the largest vocabulary of these models."""
    whole: Any = models
    logits, device = _LOGITS, find_input_device(whole[0])
    if device.type == "cuda":
        logits = max(logits, torch.cuda.get_device_properties(device).total_memory // (4 * _SHARE_OF_GPU))
    return max(1, logits // max(model.get_input_embeddings().weight.shape[0] for model in whole))


def score(model: PreTrainedModel, sequences: Sequence[PromptResponse], *, batch_tokens: int) -> list[Tensor]:
    """Return log p(response token | all tokens before it), float32 [R] on the CPU for each sequence, in order."""
    answers = logprobs_of(Mixture((model,)), [LogprobQuery((s,)) for s in sequences], batch_tokens=batch_tokens)
    return [answer.logprobs for answer in answers]


def logprobs_of(
    mixture: Mixture,
    queries: Sequence[LogprobQuery],
    *,
    batch_tokens: int,
    top: int = 0,
    vocabulary: int | None = None,
    reader: Reader = _IN_PADDED_BATCHES,
) -> list[Logprobs]:
    """Return the log-probs of each query, in order, and the `top` most likely tokens among the first `vocabulary` ids.

    Sequences of similar length share a batch of at most `batch_tokens` padded tokens, or fewer if that does not fit
    into memory. A longer sequence goes alone; so does every sequence if the numbers of a model depend on the batch
    length. `reader` runs the models.

    A log-prob that is not finite is returned unchanged, for the caller to handle. Raises TooLargeError when a single
    sequence does not fit into memory.
    """
    size = min(model.get_input_embeddings().weight.shape[0] for model in mixture.models)
    size = min(size, vocabulary or size)
    answers: dict[int, Logprobs] = {}
    lengths = [max(map(reader.length, mixture.models, query.sequences)) for query in queries]
    batch_tokens = 1 if any(map(depends_on_length, mixture.models)) else batch_tokens
    for attempt in find_budget(mixture.models[0], "scoring").batches(lengths, batch_tokens):
        with attempt, without_gradients(*mixture.models):
            batch = _logprobs_of_batch(mixture, [queries[i] for i in attempt.items], top, size, reader)
            answers |= zip(attempt.items, batch, strict=True)
        if attempt.too_large:
            tokens = max(map(len, queries[attempt.items[0]].sequences))
            raise TooLargeError(f"a prompt and reply of {tokens:,} tokens", "try --dtype bfloat16")
    return [answers[i] for i in range(len(queries))]


def _logprobs_of_batch(
    mixture: Mixture, queries: list[LogprobQuery], top: int, vocabulary: int, reader: Reader
) -> list[Logprobs]:
    """Return the answers of one batch. At most `count_rows_at_once` rows of logits are in memory at any time."""
    batches = [reader.batch(model, [q.sequences[j] for q in queries]) for j, model in enumerate(mixture.models)]
    ids_NM = _requested_ids(queries)
    step, parts = count_rows_at_once(*mixture.models), list[tuple[Tensor, Tensor, Tensor]]()
    for start in range(0, len(ids_NM), step):
        rows = slice(start, start + step)
        logprobs_by_model = list[Tensor]()  # [n, V] each
        for batch in batches:
            logprobs_by_model.append(torch.log_softmax(batch(rows), dim=-1, dtype=torch.float32)[:, :vocabulary])
        logprobs_nV = logprobs_by_model[0]  # exact for a single model: it is not averaged
        if len(batches) > 1:
            weighted = zip(logprobs_by_model, mixture.weights, strict=True)
            logprobs_nV = reduce(torch.logaddexp, (x.to(logprobs_nV.device) + math.log(w) for x, w in weighted))
        ids_nM = ids_NM[rows].to(logprobs_nV.device)
        top_ids_nK, top_nK = most_likely(logprobs_nV, top) if top else (ids_nM[:, :0], logprobs_nV[:, :0])
        parts.append((logprobs_nV.gather(-1, ids_nM).cpu(), top_ids_nK.cpu(), top_nK.cpu()))
    lengths = [len(q.sequences[0].response_ids) for q in queries]
    columns = [torch.cat(column).split(lengths) for column in zip(*parts, strict=True)]
    return [
        Logprobs(
            logprobs=requested_RM[:, 0].clone(),
            top_ids=top_ids_RK.clone(),
            top=top_RK.clone(),
            at=requested_RM[:, 1 : 1 + (0 if q.at is None else q.at.shape[1])].clone(),
        )
        for q, requested_RM, top_ids_RK, top_RK in zip(queries, *columns, strict=True)
    ]


def _requested_ids(queries: Sequence[LogprobQuery]) -> Tensor:
    """Return ids [N, 1 + M]: each response position's own token, then those of `at`, padded with 0 to the widest."""
    blocks = []
    for q in queries:
        own_R1 = torch.tensor(q.sequences[0].response_ids)[:, None]
        blocks.append(own_R1 if q.at is None else torch.cat([own_R1, q.at], -1))
    width = max(block.shape[1] for block in blocks)
    return torch.cat([pad(block, (0, width - block.shape[1])) for block in blocks])


def token_logprobs(logits_NV: Tensor, ids_N: Tensor) -> Tensor:
    """Return the log-softmax [N] of each row at its token, in float32 for logits of any dtype.

    Computed in bfloat16, a log-softmax would be off by 2e-2.
    """
    return torch.log_softmax(logits_NV, dim=-1, dtype=torch.float32).gather(-1, ids_N.unsqueeze(-1)).squeeze(-1)


def most_likely(logprobs_NV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return ids and log-probs [N, count] of the most likely tokens of each row, in descending order, ties by lower id.

    Logits in bfloat16 are often equal, and `torch.topk` breaks such ties differently on different devices.
    """
    size = logprobs_NV.shape[-1]
    values, ids = logprobs_NV.topk(min(count + 1, size))
    if size > count:
        tied = values[:, count - 1] == values[:, count]  # a token as likely as the last kept token was left out
        values, ids = values[:, :count], ids[:, :count]
        if tied.any():
            # Slow but exact: sort keys that order by log-prob, then by id.
            rows_nV = logprobs_NV[tied]
            bits = rows_nV.contiguous().view(torch.int32)
            ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # integers in the order of the floats
            keys = (ordered.long() << 31) | torch.arange(size - 1, -1, -1, device=bits.device)
            ids[tied] = size - 1 - (keys.topk(count).values & 0x7FFFFFFF)
    ids = ids.sort(-1).values
    values, order = logprobs_NV.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, order), values
