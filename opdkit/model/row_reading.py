"""Reading of token trees in rows that continue from cached states (see `opdkit.model.row_plan`).

Shapes: r rows of a pass, n tokens of its longest row, S tokens whose keys are cached, W nodes of a tree from which a
response token is predicted, H hidden size.
"""

import math
from collections.abc import Sequence
from copy import copy
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from opdkit.console import progress
from opdkit.model.load import find_cache_name, find_input_device
from opdkit.model.output_layer import OutputLayer, find_decoder
from opdkit.model.row_plan import Rows
from opdkit.model.scans import WatchedCache, scan_modules, scans_continued
from opdkit.model.windows import make_mask

# Most tokens per piece if a scan continues from a state: adding the state's share takes memory for tokens x state size.
_SCANNED = 512


def hidden_states_of_rows(
    model: Any, passes: Sequence[Rows], nodes_W: Tensor, max_piece: int
) -> tuple[Tensor, OutputLayer]:
    """Return the last hidden states [W, H] of these nodes, and the layer that turns them into logits.

    A single row of more than `max_piece` tokens is read in pieces. The cache of a pass is freed after its last use.
    """
    device, body, hidden, first = find_input_device(model), find_decoder(model), list[Tensor](), 0
    cache_name, takes_positions = find_cache_name(body), "position_ids" in signature(body.forward).parameters
    last_use = {a: i for i, rows in enumerate(passes) for a in rows.after}
    scans = scan_modules(model)
    max_piece = min(max_piece, _SCANNED) if scans else max_piece
    caches: dict[int, Any] = {}
    for i, rows in progress(list(enumerate(passes)), "reading", len(passes), "passes"):
        if rows.after[0] < 0:
            cache: Any = (WatchedCache if scans else DynamicCache)(config=model.config)
        else:
            cache = continue_rows([caches[a] for a in rows.after], rows.starts)
        for a in [a for a in caches if last_use[a] == i]:
            del caches[a]
        # A row of one token is padded: some models read a single token with another formula, which rounds more. No row
        # continues from such a row.
        width = max(2, *map(len, rows.ids))
        ids_rn = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in rows.ids], device=device)
        positions_rn = torch.tensor(rows.starts, device=device)[:, None] + torch.arange(width, device=device)
        inputs = dict[str, Any]()
        if len(set(rows.starts)) > 1 and any(isinstance(layer, CacheLayerMixin) for layer in cache.layers):
            inputs["attention_mask"] = _make_mask(model, rows.starts, width)
        nodes = nodes_W[(nodes_W >= first) & (nodes_W < first + len(rows))] - first
        places_m2 = torch.tensor([(r, t) for r, ids in enumerate(rows.ids) for t in range(len(ids))])[nodes]
        first += len(rows)
        pieces = math.ceil(width / max_piece) if len(rows.ids) == 1 else 1  # of about equal length
        size = math.ceil(width / pieces)
        for start in range(0, width, size):
            if takes_positions:
                inputs["position_ids"] = positions_rn[:, start : start + size]
            with scans_continued(scans, cache):
                output = body(
                    input_ids=ids_rn[:, start : start + size], use_cache=True, **inputs, **{cache_name: cache}
                )
            hidden_rnH = output.last_hidden_state
            in_piece = (places_m2[:, 1] >= start) & (places_m2[:, 1] < start + size)
            row_m, token_m = places_m2[in_piece].to(hidden_rnH.device).unbind(-1)
            hidden.append(hidden_rnH[row_m, token_m - start])
        if i in last_use:
            caches[i] = cache
    return torch.cat(hidden), OutputLayer(model, output)


def continue_rows(caches: Sequence[Any], starts: Sequence[int]) -> Any:
    """Return one cache with a row for each of `caches`: copies of their states, and the keys of the longest cache.

    `starts` are their lengths; the tokens of each are a prefix of the longest. None of `caches` changes later.
    """
    longest = max(range(len(caches)), key=lambda r: starts[r])
    together = copy(caches[longest])
    together.layers = [copy(layer) for layer in together.layers]
    for layer, *of_rows in zip(together.layers, *(cache.layers for cache in caches), strict=True):
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            for name in ("conv_states", "recurrent_states"):
                states = [getattr(row, name) for row in of_rows]
                kept = {k: None if x is None else torch.cat([s[k] for s in states]) for k, x in states[0].items()}
                setattr(layer, name, kept)
        for name, value in vars(layer).items():  # keys, values, and tensors by which some layers select keys
            if isinstance(value, Tensor) and value.ndim > 1:
                setattr(layer, name, value.expand(len(caches), *value.shape[1:]))
    return together


def _make_mask(model: PreTrainedModel, starts: Sequence[int], width: int) -> Tensor:
    """Return the mask [r, 1, n, S + n]: each row r sees its first `starts[r]` cached tokens and its own, causally."""
    device = find_input_device(model)
    starts_r11 = torch.tensor(starts, device=device)[:, None, None]
    cached_S, own_n = (torch.arange(size, device=device) for size in (max(starts), width))
    before_rnS = (cached_S < starts_r11).expand(-1, width, -1)
    own_rnn = (own_n <= own_n[:, None]).expand(len(starts), -1, -1)
    return make_mask(model, torch.cat([before_rnS, own_rnn], -1)[:, None])
