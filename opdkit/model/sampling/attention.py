"""Attention (sdpa) for several masked queries and grouped key heads, without a copy of keys and values per query head.

transformers 5.23 repeats keys and values for the query heads that share them, at every step, unless there is a single
query or no mask. Here, the queries of such heads become queries of one head. The numbers are the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from opdkit.model.windows import PACKED

_NAME = "opdkit_grouped_sdpa"


@contextmanager
def grouped_heads(model: PreTrainedModel) -> Iterator[None]:
    """Switch a model from the packed sdpa to this attention within the `with` block; leave other models unchanged.

    A model that keeps plain sdpa has attention code of its own (Falcon), which computes something else, without
    causality, under a name that it does not know.
    """
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    if before == PACKED["sdpa"]:
        config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Return the output of sdpa for query [B, H, n, D], key and value [B, H / G, S, D] and mask [B, 1, n, S]."""
    groups = query.shape[1] // key.shape[1]
    own_bias = kwargs.get("position_bias") is not None
    if groups == 1 or query.shape[2] == 1 or attention_mask is None or attention_mask.shape[1] > 1 or own_bias:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    B, H, n, D = query.shape
    folded = query.reshape(B, H // groups, groups * n, D)
    mask = attention_mask.repeat(1, 1, groups, 1)
    # Not `module`: sdpa would repeat the keys by its number of groups.
    output, _ = sdpa_attention_forward(_NO_GROUPS, folded, key, value, mask, **kwargs)  # [B, G n, H / G, D]
    return output.transpose(1, 2).reshape(B, H, n, -1).transpose(1, 2).contiguous(), None  # contiguous, as from sdpa


_NO_GROUPS = nn.Module()
AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, sdpa_mask)
