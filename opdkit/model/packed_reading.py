"""Trees of sequences side by side in one row, read in one forward that gradients flow through.

No padding, no mask over the whole row: each tree attends to itself alone, as a causal sequence where it is one, else
under the mask of its branches. Shapes: N response tokens of all sequences, n tokens of the row, H hidden size.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from opdkit.console import warn
from opdkit.model.memory import is_out_of_memory
from opdkit.model.output_layer import OutputLayer
from opdkit.model.scoring import PromptResponse, score, token_logprobs
from opdkit.model.tree import Pass, plan
from opdkit.model.tree_reading import reads_trees

ATTENTION = "opdkit_packed"

# Rows of a branching tree's mask that are handled at once: what is right of them is left out.
_BLOCK = 1024

_ROUNDING = 1e-3  # nats between the two ways of reading, in float32 and better
_HALF_ROUNDING = 0.25  # and in half precision, where a logit of 20 is rounded by 0.06

_checked: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


@dataclass(frozen=True)
class Block:
    """Query rows [start, stop) of a packed row; their keys are [first, stop), under `mask` or causally."""

    first: int
    start: int
    stop: int
    mask: Tensor | None  # bool [1, 1, stop - start, stop - first]


@dataclass(frozen=True)
class Pack:
    """A packed row: n tokens with their positions, who attends to whom, and where the N response tokens come from."""

    ids_1n: Tensor
    positions_1n: Tensor
    blocks: tuple[Block, ...]
    nodes_N: Tensor  # the token before each response token of each sequence, in the order of the trees

    @classmethod
    def of(cls, trees: Items[Items[PromptResponse]], device: torch.device) -> "Pack":
        """Each tree's sequences, that begin alike, with every token once."""
        passes, nodes, blocks = list[Pass](), list[int](), list[Block]()
        first = 0
        for sequences in trees:
            tree = plan([s.prompt_ids + s.response_ids for s in sequences], pack=sum(map(len, sequences)))
            for i, s in enumerate(sequences):
                nodes += [first + node for node in tree.nodes(i, len(s.prompt_ids) - 1, len(s) - 1)]
            (each,) = tree.passes
            blocks += _blocks(each, first, device)
            passes.append(each)
            first += len(each)
        row = lambda values: torch.tensor([values], dtype=torch.long, device=device)  # noqa: E731
        return cls(
            ids_1n=row([i for each in passes for i in each.ids]),
            positions_1n=row([p for each in passes for p in each.positions]),
            blocks=tuple(blocks),
            nodes_N=torch.tensor(nodes, dtype=torch.long, device=device),
        )

    def __len__(self) -> int:
        return self.ids_1n.shape[1]


def _blocks(each: Pass, first: int, device: torch.device) -> Iterator[Block]:
    """How one tree, whose tokens begin at `first`, attends to itself."""
    if each.is_chain:
        yield Block(first, first, first + len(each), None)
        return
    ends_n, order_n = torch.tensor(each.ends, device=device), torch.arange(len(each), device=device)
    for start in range(0, len(each), _BLOCK):
        stop = min(start + _BLOCK, len(each))
        rows_b, seen_n = order_n[start:stop, None], order_n[:stop]
        mask_bn = (seen_n <= rows_b) & (rows_b < ends_n[:stop])
        yield Block(first, first + start, first + stop, mask_bn[None, None])


def read_packed(model: nn.Module, pack: Pack) -> tuple[Tensor, OutputLayer]:
    """The hidden states [N, H] that predict the response tokens, and what makes logits of them. See `packs`."""
    body: Any = model
    output = body.get_decoder()(
        input_ids=pack.ids_1n,
        position_ids=pack.positions_1n,
        # Ready made, as far as the model can see, so that it makes none of its own; `_attend` knows better.
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=pack.ids_1n.device),
        use_cache=False,
        packed_blocks=pack.blocks,
    )
    return output.last_hidden_state[0, pack.nodes_N], OutputLayer(model, output)


def packs(model: nn.Module) -> bool:
    """Whether `read_packed` gives this model's own numbers; from now on it can be asked to. Says so once where not.

    Decided by what the model is and by a few made-up sequences, alike in every process. Read in any other way, the
    model gives the numbers that it gave before.
    """
    if model not in _checked:
        reason = _why_not(model)
        if reason:
            warn(f"{_name(model)} trains on padded turns, one by one, not on whole sessions: {reason}")
        _checked[model] = reason is None
    return _checked[model]


def _why_not(model: Any) -> str | None:
    config = model.config.get_text_config(decoder=True)
    if config._attn_implementation not in ("sdpa", ATTENTION):
        return f"its attention ({config._attn_implementation}) is not torch's own (sdpa)"
    if not reads_trees(model):
        return "it cannot read what turns have in common once"
    was = config._attn_implementation
    config._attn_implementation = ATTENTION
    difference = _difference(model)
    if difference <= (_HALF_ROUNDING if model.dtype in (torch.float16, torch.bfloat16) else _ROUNDING):
        return None
    config._attn_implementation = was
    return f"else its log-probs would differ by {difference:.1g} nats"


@torch.inference_mode()
def _difference(model: Any) -> float:
    """The largest difference in a log-prob between packed and plain reading; infinite where a packed one fails."""
    draw = torch.Generator().manual_seed(0)
    size = min(model.get_input_embeddings().weight.shape[0], 1000)
    a, b, c, d = torch.randint(0, size, (4, 12), generator=draw).tolist()
    chain, fork = (
        [PromptResponse(a, b), PromptResponse(a + b + c, d)],
        [PromptResponse(a, c + d), PromptResponse(a + b, d), PromptResponse(a, b[:7])],
    )
    trees = [chain, fork, [PromptResponse(d, c)]]
    sequences = [s for tree in trees for s in tree]
    try:
        hidden_NH, output_layer = read_packed(model, Pack.of(trees, model.device))
    except (TypeError, ValueError, RuntimeError) as error:  # a model that does not hand the blocks down
        if is_out_of_memory(error):
            raise
        return float("inf")
    ids_N = torch.tensor([i for s in sequences for i in s.response_ids], device=model.device)
    packed_N = token_logprobs(output_layer(hidden_NH), ids_N).cpu()
    plain_N = torch.cat(score(model, sequences, batch_tokens=1))
    worst = float((packed_N - plain_N).abs().max())
    return worst if worst == worst else float("inf")


def _name(model: Any) -> str:
    return getattr(model, "name_or_path", "") or type(model).__name__


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_blocks: tuple[Block, ...] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed row, block by block; torch's own where nothing is packed. [1, heads, n, size] each."""
    if packed_blocks is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    parts = [
        sdpa_attention_forward(
            module,
            query[:, :, b.start : b.stop],
            key[:, :, b.first : b.stop],
            value[:, :, b.first : b.stop],
            b.mask,
            **options,
        )[0]
        for b in packed_blocks
    ]
    return torch.cat(parts, dim=1), None


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
