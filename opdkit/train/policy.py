"""The student as the loss sees it: from turns to log-probs and entropies, in one forward that gradients flow through.

Shapes: N response tokens of the turns, K ids asked for at each of them, H hidden size, V vocabulary.
"""

from collections.abc import Sequence as Items
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from opdkit.model.output_layer import OutputLayer
from opdkit.model.packed_reading import Pack, packs, read_packed
from opdkit.model.scoring import PromptResponse, response_logits, rows_at_once
from opdkit.train.objective import entropy, gathered_logprobs


class Policy(nn.Module):
    """A causal language model that answers with log-probs of given tokens.

    All that needs its weights happens in `forward`, so that what wraps it (DistributedDataParallel) sees each use.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.packed = packs(model)

    def forward(self, trees: Items[Items[PromptResponse]], ids_NK: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs [N, K] of `ids_NK` at the response tokens of all sequences; entropies [N] there, without gradient.

        Float32, natural log, temperature 1. The sequences of a tree have a beginning in common and share its reading;
        where the model cannot do that (`packed` is false) they are read side by side, padded.
        """
        model: Any = self.model
        if not self.packed:
            logits_NV, _ = response_logits(model, [s for tree in trees for s in tree])
            return _answers(logits_NV, ids_NK)
        hidden_NH, output_layer = read_packed(model, Pack.of(trees, model.device))
        return logprobs_by_rows(output_layer, hidden_NH, ids_NK, rows_at_once(model))


def logprobs_by_rows(output_layer: OutputLayer, hidden_NH: Tensor, ids_NK: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Log-probs [N, K] and entropies [N], with the logits of at most `rows` positions in memory at any time.

    Where there are more, they are made some rows at a time, and again in the backward pass instead of being kept.
    """

    def answers(hidden_nH: Tensor, ids_nK: Tensor) -> tuple[Tensor, Tensor]:
        return _answers(output_layer(hidden_nH), ids_nK)

    if len(hidden_NH) <= rows:
        return answers(hidden_NH, ids_NK)
    rows = max(1, rows)
    parts = [
        checkpoint(answers, hidden_nH, ids_nK, use_reentrant=False)
        for hidden_nH, ids_nK in zip(hidden_NH.split(rows), ids_NK.split(rows), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _answers(logits_nV: Tensor, ids_nK: Tensor) -> tuple[Tensor, Tensor]:
    logprobs_nK = gathered_logprobs(logits_nV, ids_nK)
    with torch.no_grad():  # after the log-probs: a backward pass that makes the logits again stops before it
        entropy_n = entropy(logits_nV.detach().float())
    return logprobs_nK, entropy_n
