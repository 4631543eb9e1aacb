"""Attention windows, masks and prefixes: how many tokens back each layer of a model sees.

A layer with a state in place of keys (state-space, linear attention, convolution) or with chunked attention has no
window. For a model with such layers, `find_windows` returns None.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from opdkit.model.output_layer import has_separate_output_layer

# A model's own attention -> the attention of packed rows that replaces it (`opdkit.model.packed_reading`).
PACKED = {"sdpa": "opdkit_packed", "eager": "opdkit_packed_eager"}
FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of layers, as configurations name them
# Cache layers for attention over keys. A layer that shares the keys of another layer has a DummyLayer.
_KEEP_KEYS = {"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"}
# The longest window that made-up tokens fill. Reading longer ones would take seconds on a CPU.
_LONGEST_MADE_UP = 1024


def find_windows(model: PreTrainedModel) -> list[int | None] | None:
    """Return each layer's window: how many tokens a token sees, itself included. None in the list: all before it.

    Return None in place of the list for a model with layers of other kinds, or with windows of several sizes.
    """
    config, layers = model.config.get_text_config(decoder=True), DynamicCache(config=model.config).layers
    kinds = getattr(config, "layer_types", None)
    if kinds is None:  # all layers are alike
        kinds = [SLIDING if getattr(config, "sliding_window", None) else FULL] * len(layers)
    known = all(type(layer).__name__ in _KEEP_KEYS for layer in layers) and {FULL, SLIDING}.issuperset(kinds)
    if not known or getattr(config, "attention_chunk_size", None):
        return None
    # In older versions of transformers, a layer that shares the keys of another layer has no cache layer.
    sizes = [getattr(layer, "sliding_window", None) for layer in layers] + [None] * (len(kinds) - len(layers))
    windows = [(size or config.sliding_window) if kind == SLIDING else None
               for size, kind in zip(sizes, kinds, strict=True)]  # fmt: skip
    return windows if len({*windows} - {None}) < 2 else None


def within(window: int | None, queries: Tensor, keys: Tensor) -> Tensor:
    """Return True where a key is less than `window` positions before the query, or after it; broadcasts."""
    return torch.ones_like(queries - keys, dtype=torch.bool) if window is None else queries - keys < window


def make_masks(windows: Iterable[int | None], mask: Callable[[int | None], Tensor]) -> Tensor | dict[str, Tensor]:
    """Return the masks of these windows by kind of layer; if all layers are of one kind, the single mask."""
    masks = {SLIDING if window else FULL: mask(window) for window in set(windows)}
    return masks if len(masks) > 1 else masks.popitem()[1]


def make_mask(model: PreTrainedModel, visible: Tensor) -> Tensor:
    """Return a mask in the form that a model's attention takes: `visible` (sdpa), or `make_additive_mask` of it."""
    sdpa = model.config.get_text_config(decoder=True)._attn_implementation in ("sdpa", PACKED["sdpa"])
    return visible if sdpa else make_additive_mask(visible, model.dtype)


def make_additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to attention scores: 0 where visible, the lowest number of the dtype elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, torch.finfo(dtype).min)


def make_up_tokens(model: PreTrainedModel, length: int) -> list[list[int]]:
    """Return four lists of `length` token ids, always the same. The first is longer by the model's window.

    So tokens after the first list do not see its beginning. A window of more than 1,024 tokens is not added.
    """
    window = max((size for size in find_windows(model) or () if size and size <= _LONGEST_MADE_UP), default=0)
    generator = torch.Generator().manual_seed(0)
    size = min(model.get_input_embeddings().weight.shape[0], 1000)
    a, b, c, d = torch.randint(0, size, (4, length), generator=generator).tolist()
    return [torch.randint(0, size, (window,), generator=generator).tolist() + a, b, c, d]


def depends_on_length(model: PreTrainedModel) -> bool:
    """Return whether the position embeddings of a model depend on how many tokens it reads.

    The longest sequence of a padded batch then changes the numbers of all others.
    """
    config = model.config.get_text_config(decoder=True)
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}  # one set, or one per kind of layer
    every_rope = [rope, *(p for p in rope.values() if isinstance(p, dict))]
    return bool({"dynamic", "longrope"} & {p["rope_type"] for p in every_rope if "rope_type" in p})


def find_prefix_problem(model: PreTrainedModel) -> str | None:
    """Return why a model's architecture rules out reading a prefix as part of a longer sequence, or None."""
    if depends_on_length(model):
        return "its position embeddings depend on the number of tokens read"
    if not has_separate_output_layer(model):
        return "its output layer cannot be run separately"
    return None
