"""A model's output layer apart from the layers below it: only the rows that are asked for are multiplied.

Shapes: n rows, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn


class OutputLayer:
    """What a model does with the last hidden states, after its layers have run once."""

    def __init__(self, model: nn.Module, output: Any) -> None:
        """`output` is what the layers below returned; nothing of it is kept but its type."""
        self._model: Any = model
        self._output = replace(output, **dict.fromkeys(output))

    def __call__(self, hidden_nH: Tensor) -> Tensor:
        """[n, V] in the model's own dtype; differentiable."""
        there = replace(self._output, last_hidden_state=hidden_nH.unsqueeze(0))
        ids_1n = torch.zeros((1, len(hidden_nH)), dtype=torch.long, device=hidden_nH.device)
        # The whole model, so that what it does around the output layer (soft-capping, scaling) still happens.
        with forward_replaced(self._model.get_decoder(), lambda *args, **kwargs: there):
            return self._model(input_ids=ids_1n, use_cache=False).logits[0]


def is_apart(model: nn.Module) -> bool:
    """Whether the output layer of `model` can be told from the layers below."""
    whole: Any = model
    head, body = whole.get_output_embeddings(), whole.get_decoder()
    return body is not None and body is not model and all(module is not head for module in body.modules())


@contextmanager
def forward_replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """The module runs `forward` for its own."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
