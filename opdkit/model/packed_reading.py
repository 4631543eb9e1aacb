"""Trees of sequences packed side by side in one row, which a model reads in one differentiable forward.

There is no padding and no mask over the whole row. A row consists of the passes of `opdkit.model.tree`, one after the
other: a trunk attends causally to itself; branches attend, under a mask, to themselves and to the prefix that they
continue. In a layer with an attention window, rows skip the keys before all of their windows. A model with its own
attention code (soft caps, sinks) holds the scores of some rows at a time, always under a mask. A model that cannot read
branches this way reads chains instead (turns that continue each other), as plain sequences. Shapes: N response tokens
of all sequences, n tokens of the row, H hidden size.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from opdkit.model.memory import is_out_of_memory
from opdkit.model.output_layer import OutputLayer, find_decoder
from opdkit.model.rounding import find_difference
from opdkit.model.scoring import PromptResponse, read_chains, score, token_logprobs
from opdkit.model.tree import PACK_TOKENS, Pass, Plan, cut_ranges, plan_passes
from opdkit.model.windows import PACKED, find_prefix_problem, find_windows, make_additive_mask, make_up_tokens, within

# Most rows in a block with a mask.
_BLOCK = 1024
# On a GPU, the block of a trunk is extended to a multiple of this with the rows after it. Causality hides those rows
# from the trunk, and their outputs are dropped. Reason: cuDNN, there twice as fast as other kernels, plans for each new
# number of rows (60 ms on an H200).
_GRID = 512
_ON_GRID = {"cuda"}  # torch device types


@dataclass(frozen=True)
class Block:
    """Query rows [start, stop) of a packed row, and the rows of their keys; the last keys are those of the query rows.

    Without a mask, attention is causal and the query rows are the only keys. `positions` are the positions of the keys
    in their tree; `first` is the lowest position of a query row.
    """

    start: int
    stop: int
    keys: tuple[range, ...]
    mask: Tensor | None  # bool [1, 1, stop - start, keys]
    positions: Tensor  # [keys]
    first: int

    def cut(self, window: int | None) -> Iterator["Block"]:
        """Yield blocks of the same rows for a layer with an attention window, without the keys before all windows.

        If `window` is not None, each has a mask and at most _BLOCK rows.
        """
        if window is None:
            yield self
        elif self.mask is None:
            for start in range(self.start, self.stop, _BLOCK):
                stop = min(start + _BLOCK, self.stop)
                first = max(self.start, start - window + 1)
                positions = self.positions[first - self.start : stop - self.start]
                rows_b1 = positions[start - first :, None]
                mask_bn = within(window, rows_b1, positions) & (positions <= rows_b1)
                yield Block(start, stop, (range(first, stop),), mask_bn[None, None], positions, start - self.start)
        else:
            rows_b1 = self.positions[self.start - self.stop :, None]
            unseen = max(0, self.first - window + 1)  # keys before all windows; the prefix's keys come first
            unseen = min(unseen, sum(map(len, self.keys[:-1])))
            keys, positions = cut_ranges(self.keys, unseen, len(self.positions)), self.positions[unseen:]
            mask_bk = self.mask[0, 0, :, unseen:] & within(window, rows_b1, positions)
            yield Block(self.start, self.stop, keys, mask_bk[None, None], positions, self.first)


@dataclass(frozen=True)
class Pack:
    """Packed row: n tokens, their positions, the blocks of attention, and the nodes that predict response tokens."""

    ids_1n: Tensor
    positions_1n: Tensor
    blocks: tuple[Block, ...]
    nodes_N: Tensor  # the token before each response token of each sequence, in the order of the trees

    @classmethod
    def of(cls, trees: Sequence[Sequence[PromptResponse]], device: torch.device) -> "Pack":
        """Pack trees, each given as sequences with a common prefix; the row holds each token of a tree once."""
        plans, nodes, first = list[Plan[Pass]](), list[int](), 0
        for sequences in trees:
            plan = plan_passes([s.prompt_ids + s.response_ids for s in sequences], PACK_TOKENS)
            for i, s in enumerate(sequences):
                nodes += [first + node for node in plan.nodes(i, len(s.prompt_ids) - 1, len(s) - 1)]
            plans.append(plan)
            first += plan.tokens
        return cls.of_passes([plan.passes for plan in plans], torch.tensor(nodes, dtype=torch.long), device)

    @classmethod
    def of_passes(cls, trees: Sequence[Sequence[Pass]], nodes_N: Tensor, device: torch.device) -> "Pack":
        """Pack the passes of each tree. Node numbers count through the passes of all trees."""
        blocks, passes, first = list[Block](), list[Pass](), 0
        for tree in trees:
            before: tuple[range, ...] = ()  # rows that a KV cache would hold
            for one in tree:
                before = cut_ranges(before, 0, one.prefix)
                blocks += _plan_blocks(one, first, before, device)
                before = (*before, range(first, first + len(one)))
                first += len(one)
            passes += tree
        spare = max(0, *(b.start + _round_rows(b, device) for b in blocks)) - first
        ids = [i for one in passes for i in one.ids] + [0] * spare
        positions = [p for one in passes for p in one.positions] + [0] * spare
        return cls(
            ids_1n=torch.tensor([ids], device=device),
            positions_1n=torch.tensor([positions], device=device),
            blocks=tuple(blocks),
            nodes_N=nodes_N.to(device),
        )


def _round_rows(block: Block, device: torch.device) -> int:
    """Return the number of rows of a block, rounded up to a multiple of _GRID for a trunk on a GPU."""
    rows = block.stop - block.start
    return -(-rows // _GRID) * _GRID if block.mask is None and device.type in _ON_GRID else rows


def _plan_blocks(one: Pass, first: int, before: tuple[range, ...], device: torch.device) -> Iterator[Block]:
    """Yield the blocks in which a pass that begins at row `first` attends to the rows `before` it and to itself."""
    if one.is_chain and not before:
        rows = range(first, first + len(one))
        yield Block(first, first + len(one), (rows,), None, torch.tensor(one.positions, device=device), 0)
        return
    for start in range(0, len(one), _BLOCK):
        stop = min(start + _BLOCK, len(one))
        mask_bk, positions_k = find_visible_keys(one, start, stop, device)
        keys = (*before, range(first, first + stop))
        lowest = min(one.positions[start:stop])
        yield Block(first + start, first + stop, keys, mask_bk[None, None], positions_k, lowest)


def find_visible_keys(one: Pass, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return which keys the tokens [start, stop) of a pass see, bool [stop - start, keys], and the keys' positions.

    The keys are those of the prefix, then those of the pass up to `stop`.
    """
    visible_b, ends_n = (torch.tensor(x, device=device) for x in (one.visible_prefix[start:stop], one.subtree_end))
    prefix_p, order_n = torch.arange(one.prefix, device=device), torch.arange(stop, device=device)
    rows_b1 = order_n[start:, None]
    own_bn = (order_n <= rows_b1) & (rows_b1 < ends_n[:stop])
    positions_n = torch.tensor(one.positions[:stop], device=device)
    return torch.cat([prefix_p < visible_b[:, None], own_bn], -1), torch.cat([prefix_p, positions_n])


def read_packed(model: Any, pack: Pack) -> tuple[Tensor, OutputLayer]:
    """Return the hidden states [N, H] that predict the response tokens, and the layer that turns them into logits.

    The model must have been prepared by `enable_packing`.
    """
    is_eager = model.config.get_text_config(decoder=True)._attn_implementation == PACKED["eager"]
    windows = [window or (sys.maxsize if is_eager else None) for window in find_windows(model) or []]
    blocks = {window: tuple(cut for block in pack.blocks for cut in block.cut(window)) for window in set(windows)}
    output = find_decoder(model)(
        input_ids=pack.ids_1n,
        position_ids=pack.positions_1n,
        # Given a mask, the model makes none of its own. `_attend` ignores this mask and uses the blocks.
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=pack.ids_1n.device),
        use_cache=False,
        packed_blocks=tuple(blocks[window] for window in windows),
    )
    nodes_N = pack.nodes_N.to(output.last_hidden_state.device)  # the last device if the model is on several
    return output.last_hidden_state[0, nodes_N], OutputLayer(model, output)


def enable_packing(model: Any) -> str | None:
    """Switch a model to the attention of `read_packed`; if its numbers would differ, return why and change nothing.

    Checks the architecture and reads a few made-up sequences, the same in every process. Without packed blocks, the new
    attention gives the model's own numbers.
    """
    config = model.config.get_text_config(decoder=True)
    own = config._attn_implementation
    packed = PACKED.get(own, own)
    if find_windows(model) is None:
        return "some of its layers have neither full nor sliding-window attention"
    if packed not in PACKED.values():
        return f"its attention ({own}) takes no custom mask"
    if problem := find_prefix_problem(model):
        return problem
    config._attn_implementation = packed
    if problem := _read_made_up(model, chains=False):
        config._attn_implementation = own
    return problem


def find_chain_problem(model: Any) -> str | None:
    """Return why, by architecture or on made-up sequences, `read_chains` would give other numbers, or None."""
    return find_prefix_problem(model) or _read_made_up(model, chains=True)


@torch.inference_mode()
def _read_made_up(model: Any, *, chains: bool) -> str | None:
    """Read made-up sequences, packed or in chains. Return why the log-probs differ from plain reading, or None."""
    a, b, c, d = make_up_tokens(model, 12)
    chain = [PromptResponse(a, b), PromptResponse(a + b + c, d)]
    fork = [PromptResponse(a, c + d), PromptResponse(a + b, d), PromptResponse(a, b[:7])]
    trees = [chain, *([s] for s in fork)] if chains else [chain, fork, [PromptResponse(d, c)]]
    sequences = [s for tree in trees for s in tree]
    try:
        read = read_chains(model, trees) if chains else read_packed(model, Pack.of(trees, model.device))
        hidden_NH, output_layer = read
    except (TypeError, ValueError, RuntimeError, AttributeError, LookupError) as error:
        # The model does not pass the blocks to its layers, or its layers have no `layer_idx`.
        if is_out_of_memory(error):
            raise
        return f"it cannot be read that way ({type(error).__name__})"
    ids_N = torch.tensor([i for s in sequences for i in s.response_ids], device=model.device)
    plain_N = torch.cat(score(model, sequences, batch_tokens=1))
    difference = find_difference(model, token_logprobs(output_layer(hidden_NH), ids_N).cpu(), plain_N)
    return None if difference is None else f"otherwise its log-probs would differ by {difference:.1g} nats"


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_blocks: tuple[tuple[Block, ...], ...] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend block by block in a packed row; query, key, value are [1, heads, n, size]. Without blocks, call sdpa.

    `packed_blocks` holds the blocks of each layer.
    """
    size = value.shape[-1]
    if query.device.type == "cpu" and size < query.shape[-1]:
        # DeepSeek's value heads are smaller than its key heads. On a CPU, torch's fast attention needs equal sizes.
        value = nn.functional.pad(value, (0, query.shape[-1] - size))
    if packed_blocks is None:
        read, weights = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return read[..., :size], weights
    parts = []
    for b in packed_blocks[module.layer_idx]:
        stop, mask = b.start + _round_rows(b, query.device), None if b.mask is None else b.mask.to(query.device)
        keys = (range(b.start, stop),) if mask is None else b.keys
        with _choose_kernels(query.device, mask):
            read = sdpa_attention_forward(module, query[:, :, b.start : stop], _rows(key, keys), _rows(value, keys),
                                          mask, **options)[0]  # fmt: skip
        parts.append(read[:, : b.stop - b.start, :, :size])
    return _fill(parts, query.shape[2] - packed_blocks[module.layer_idx][-1].stop), None


def _choose_kernels(device: torch.device, mask: Tensor | None) -> AbstractContextManager[None]:
    """Return the context that chooses the attention kernels for a block.

    On a GPU, cuDNN is preferred without a mask and excluded with a mask: it plans for each new mask shape, for up to a
    second.
    """
    if device.type != "cuda":
        return nullcontext()
    rest = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, *rest] if mask is None else rest, set_priority=True)


def _fill(parts: Sequence[Tensor], rest: int) -> Tensor:
    """Return parts [1, rows, ...] as one, then zeros for the `rest` of the rows, which only pad a trunk's block."""
    fill = parts[0].new_zeros(1, rest, *parts[0].shape[2:])
    return torch.cat([*parts, fill] if rest else list(parts), dim=1)


def _rows(states: Tensor, ranges: Sequence[range]) -> Tensor:
    """Return these rows of states [1, heads, n, size]."""
    parts = [states[:, :, one.start : one.stop] for one in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _attend_eagerly(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_blocks: tuple[tuple[Block, ...], ...] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend as `_attend` does, with the model's own eager attention, which holds the scores in memory.

    The scores of a block [heads, rows, keys] are not kept for the backward pass, which computes them again.
    """
    attend = sys.modules[type(module).__module__].eager_attention_forward
    if packed_blocks is None:
        result: tuple[Tensor, Tensor | None] = attend(module, query, key, value, attention_mask, **options)
        return result

    def attend_to_block(b: Block, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        assert b.mask is not None  # `read_packed` gives every block a mask
        inputs = query[:, :, b.start : b.stop], _rows(key, b.keys), _rows(value, b.keys)
        block: Tensor = attend(module, *inputs, make_additive_mask(b.mask.to(query.device), query.dtype), **options)[0]
        return block

    blocks = packed_blocks[module.layer_idx]
    # Pass the tensors as arguments: `checkpoint` finds the device by them, and recomputes under its autocast dtype.
    parts = [checkpoint(attend_to_block, b, query, key, value, use_reentrant=False) for b in blocks]
    return _fill(parts, query.shape[2] - blocks[-1].stop), None


AttentionInterface.register(PACKED["sdpa"], _attend)
AttentionMaskInterface.register(PACKED["sdpa"], sdpa_mask)
AttentionInterface.register(PACKED["eager"], _attend_eagerly)
AttentionMaskInterface.register(PACKED["eager"], eager_mask)
