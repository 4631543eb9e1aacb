"""Output layer of a model, run separately from the layers below it, so that logits are computed for chosen rows only.

Shapes: n rows, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn


class OutputLayer:
    """Part of a model that turns its last hidden states into logits."""

    def __init__(self, model: nn.Module, output: Any) -> None:
        """Keep the type of `output`, which the layers below returned, but none of its tensors."""
        self._model: Any = model
        self._output = replace(output, **dict.fromkeys(output))

    def __call__(self, hidden_nH: Tensor) -> Tensor:
        """Return logits [n, V] in the model's own dtype; differentiable."""
        output = replace(self._output, last_hidden_state=hidden_nH.unsqueeze(0))
        ids_1n = torch.zeros((1, len(hidden_nH)), dtype=torch.long, device=hidden_nH.device)
        # The whole model runs, so that its code around the output layer (soft-capping, scaling) still applies.
        with forward_replaced(find_decoder(self._model), lambda *args, **kwargs: output):
            return self._model(input_ids=ids_1n, use_cache=False).logits[0]


def find_decoder(model: Any) -> Any:
    """Return the module with all layers below the output layer; None or the whole model if there is no such module.

    For Llama 4, `get_decoder` stops at the causal LM, whose base model is not named as its class declares.
    """
    decoder = model.get_decoder()
    if isinstance(decoder, nn.Linear):  # ModernBERT's output layer has the name that others give to their layers
        return model.base_model
    is_whole = decoder is not None and decoder.get_output_embeddings() is not None
    return getattr(decoder, "model", decoder) if is_whole else decoder


def has_separate_output_layer(model: nn.Module) -> bool:
    """Return whether the output layer is outside the decoder, so that each can run without the other."""
    whole: Any = model
    head, body = whole.get_output_embeddings(), find_decoder(whole)
    return body is not None and body is not model and all(module is not head for module in body.modules())


@contextmanager
def forward_replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace the module's `forward` within the `with` block."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
