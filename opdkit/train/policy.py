"""Policy in training: turns to log-probs and entropies, in one differentiable forward.

Shapes: N response tokens of all turns, n of one chunk, K requested ids per token, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from opdkit.console import warn
from opdkit.model.output_layer import OutputLayer
from opdkit.model.packed_reading import Pack, enable_packing, find_chain_problem, read_packed
from opdkit.model.scoring import PromptResponse, count_rows_at_once, read_chains, response_logits
from opdkit.train.objective.losses import logprobs_and_entropy

Result = TypeVar("Result")


class Policy(nn.Module):
    """Causal language model whose forward returns log-probs of given tokens.

    Training uses its weights only through `forward`, so that a wrapper (DistributedDataParallel) sees every use.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        problem = enable_packing(model)
        no_chains = problem and find_chain_problem(model)
        self.packed, self.chains = problem is None, problem is not None and no_chains is None
        if problem:
            name = getattr(model, "name_or_path", "") or type(model).__name__
            turns = "turns, each from its beginning" if no_chains else "turns that do not continue each other"
            warn(f"{name} trains on {turns}, one by one: {no_chains or problem}")

    def forward(self, trees: Sequence[Sequence[PromptResponse]], ids_NK: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probs [N, K] of `ids_NK` at the response tokens of all sequences, and entropies [N] without graph.

        Log-probs are natural logs in float32 at temperature 1. The common prefix of a tree's sequences is read once.
        If the model cannot do that (`packed` is false), each tree must be a chain (with `chains`) or a single sequence.
        """
        model: Any = self.model
        if self.packed or self.chains:
            read = read_packed(model, Pack.of(trees, model.device)) if self.packed else read_chains(model, trees)
            hidden_NH, output_layer = read
            return logprobs_by_rows(output_layer, hidden_NH, ids_NK, count_rows_at_once(model))
        return logprobs_and_entropy(response_logits(model, [s for tree in trees for s in tree]), ids_NK)

    def run(self, task: Callable[[], Result]) -> Result:
        """Return `task()`, which may call the model. Under FSDP this counts as a forward, so weights are gathered."""
        return task()


def logprobs_by_rows(output_layer: OutputLayer, hidden_NH: Tensor, ids_NK: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return log-probs [N, K] and entropies [N], with the logits of at most `rows` positions in memory at once.

    More positions are processed in chunks, whose logits are not kept but computed again in the backward pass.
    """
    if len(hidden_NH) <= rows:
        return logprobs_and_entropy(output_layer(hidden_NH), ids_NK)
    read = lambda hidden_nH, ids_nK: logprobs_and_entropy(output_layer(hidden_nH), ids_nK)  # noqa: E731
    parts = [
        checkpoint(read, hidden_nH, ids_nK, use_reentrant=False)
        for hidden_nH, ids_nK in zip(hidden_NH.split(rows), ids_NK.split(rows), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)
