"""Policy in training: from turns to log-probs and entropies, in one differentiable forward.

Shapes: N response tokens of all turns, n of one chunk, K requested ids at each, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from opdkit.model.output_layer import OutputLayer
from opdkit.model.packed_reading import Pack, enable_packing, read_chains, read_packed, reads_chains
from opdkit.model.scoring import PromptResponse, response_logits, rows_at_once
from opdkit.train.objective.losses import entropy, gathered_logprobs

Result = TypeVar("Result")


class Policy(nn.Module):
    """Causal language model whose forward returns log-probs of given tokens.

    Its weights are only used in `forward`, so that a wrapper (DistributedDataParallel) sees each use.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.packed = enable_packing(model)
        self.chains = not self.packed and reads_chains(model)

    def forward(self, trees: Sequence[Sequence[PromptResponse]], ids_NK: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probs [N, K] of `ids_NK` at the response tokens of all sequences, and entropies [N] without graph.

        Float32, natural log, temperature 1. The common prefix of the sequences of a tree is read once. Where the model
        cannot do that (`packed` is false), each tree must be a chain (`chains`), or all sequences are a padded batch.
        """
        model: Any = self.model
        if self.packed or self.chains:
            read = read_packed(model, Pack.of(trees, model.device)) if self.packed else read_chains(model, trees)
            hidden_NH, output_layer = read
            return logprobs_by_rows(output_layer, hidden_NH, ids_NK, rows_at_once(model))
        logits_NV, _ = response_logits(model, [sequence for tree in trees for sequence in tree])
        return gathered_logprobs(logits_NV, ids_NK), entropy(logits_NV.detach())

    def run(self, task: Callable[[], Result]) -> Result:
        """Return `task()`, which may call the model: weights that are sharded are at hand, as in a forward."""
        return task()


def logprobs_by_rows(output_layer: OutputLayer, hidden_NH: Tensor, ids_NK: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return log-probs [N, K] and entropies [N], with the logits of at most `rows` positions in memory at once.

    More positions are processed in chunks. Their logits are not kept, but computed again in the backward pass.
    """
    if len(hidden_NH) <= rows:
        return _logprobs_and_entropy(output_layer, hidden_NH, ids_NK)
    rows = max(1, rows)
    parts = [
        checkpoint(_logprobs_and_entropy, output_layer, hidden_nH, ids_nK, use_reentrant=False)
        for hidden_nH, ids_nK in zip(hidden_NH.split(rows), ids_NK.split(rows), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _logprobs_and_entropy(output_layer: OutputLayer, hidden_nH: Tensor, ids_nK: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probs [n, K] and entropies [n] of one chunk."""
    logits_nV = output_layer(hidden_nH)
    logprobs_nK = gathered_logprobs(logits_nV, ids_nK)
    # The entropy comes last and has no graph, so that recomputation in the backward pass stops before it.
    return logprobs_nK, entropy(logits_nV.detach().float())
