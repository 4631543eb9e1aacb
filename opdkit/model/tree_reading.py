"""Log-probs of sequences with common prefixes: a model reads each token of their tree once (see `opdkit.model.tree`).

    reader = read_trees([(model, sequences)], batch_tokens)
    logprobs_of(Mixture((model,)), queries, batch_tokens=batch_tokens, reader=reader)

Shapes as in `opdkit.model.scoring`; also W nodes of a tree from which a response token is predicted, H hidden size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from opdkit.console import progress, warn
from opdkit.errors import OpdkitError
from opdkit.model.load import find_cache_name, find_input_device
from opdkit.model.memory import find_budget, find_state, is_out_of_memory, without_gradients
from opdkit.model.output_layer import OutputLayer, find_decoder
from opdkit.model.packed_reading import Pack, find_visible_keys, read_packed
from opdkit.model.rounding import find_difference
from opdkit.model.row_plan import plan_rows
from opdkit.model.row_reading import hidden_states_of_rows
from opdkit.model.scoring import LogprobQuery, Logprobs, Mixture, PromptResponse, Reader, logprobs_of
from opdkit.model.tree import PACK_TOKENS, Pass, Plan, plan_passes
from opdkit.model.windows import (
    PACKED,
    find_prefix_problem,
    find_windows,
    make_mask,
    make_masks,
    make_up_tokens,
    within,
)

# Share of the tokens that a tree must save; otherwise padded batches, which need no mask for branches, are as good.
_MIN_SAVED = 0.1

# A trunk longer than the budget is read in pieces of at most this many tokens: activations of a piece are freed before
# the next, and only keys and values grow with the length of a session. Reading a trunk in one piece needs no mask and
# takes three quarters of the time (8,192 tokens on a CPU).
_CHUNK = 4096
_LEAST = 256  # tokens that a piece may have, however small the budget

# Layers of a cache that keep the keys of all tokens.
_KEEP_ALL_KEYS = {"DynamicLayer", "LinearAttentionAndFullAttentionLayer"}

# Most tokens of the first tree that are read both ways; more if its shortest sequence is longer.
_COMPARED_TOKENS = 4096


@dataclass
class TreeReader(Reader):
    """Reader of trees that have gone through the layers of models, with the number of tokens read and saved."""

    by_model: dict[int, "TreeStates"] = field(default_factory=dict)  # id(model) -> its tree; absent: padded batches
    tokens: int = 0  # read, including those of the padded batches to come
    saved: int = 0  # tokens that padded batches would read in addition

    def batch(self, model: PreTrainedModel, sequences: Sequence[PromptResponse]) -> Callable[[slice], Tensor]:
        """Return what `Reader.batch` returns, from the model's tree or else from a padded batch."""
        tree = self.by_model.get(id(model))
        return super().batch(model, sequences) if tree is None else tree.batch(sequences)

    def length(self, model: PreTrainedModel, sequence: PromptResponse) -> int:
        """Return how many positions of a sequence are still to be turned into logits or, without a tree, to be read."""
        return len(sequence.response_ids) if id(model) in self.by_model else super().length(model, sequence)


def read_trees(
    by_model: Sequence[tuple[PreTrainedModel, list[PromptResponse]]], batch_tokens: int, *, whole: bool = True
) -> TreeReader:
    """Let each model read the tree of its sequences if that saves enough tokens and gives the model's own numbers.

    With `whole` False, nothing is read here and all sequences are left to padded batches. Raises OpdkitError if the
    first tree that a model reads does not give the numbers of padded batches.
    """
    trees = TreeReader()
    for model, sequences, plan in _plan_trees(by_model, batch_tokens, whole):
        total = sum(map(len, sequences))
        if plan is None or not check_tree_reading(model):
            trees.tokens += total
            continue
        tree = TreeStates(model, sequences, plan, max(_LEAST, batch_tokens))
        if not bool(tree.hidden_WH.isfinite().all()):
            # A masked NaN still spreads, as NaN * 0 is NaN. In padded batches, it affects only the turns that have it.
            trees.tokens += plan.tokens + total
            continue
        if not find_state(model).tree_compared:
            _compare_with_padded(tree)
            find_state(model).tree_compared = True
        trees.by_model[id(model)] = tree
        trees.tokens, trees.saved = trees.tokens + plan.tokens, trees.saved + plan.saved
    return trees


def plan_tree(model: PreTrainedModel, sequences: Sequence[PromptResponse], pack_tokens: int) -> Plan[Any]:
    """Return the plan by which a model reads a tree: under masks if all of its layers can use them, else in rows.

    A layer that keeps a state in place of keys, or attends within chunks, takes no mask. If all other layers keep all
    keys, rows from different forks can share a pass.
    """
    ids = [s.prompt_ids + s.response_ids for s in sequences]
    if find_windows(model) is not None:
        return plan_passes(ids, pack_tokens)
    with_keys = {type(x).__name__ for x in DynamicCache(config=model.config).layers if isinstance(x, CacheLayerMixin)}
    return plan_rows(ids, pack_tokens, one_fork=not with_keys <= _KEEP_ALL_KEYS)


def _plan_trees(
    by_model: Sequence[tuple[PreTrainedModel, list[PromptResponse]]], batch_tokens: int, whole: bool
) -> Iterator[tuple[PreTrainedModel, list[PromptResponse], Plan[Any] | None]]:
    """Yield each model with all of its sequences and the plan to read their tree; None if that saves too little."""
    for model in {id(model): model for model, _ in by_model}.values():
        sequences = [s for other, given in by_model if other is model for s in given]
        plan = plan_tree(model, sequences, min(PACK_TOKENS, batch_tokens)) if whole else None
        yield model, sequences, plan if plan and plan.saved > _MIN_SAVED * (plan.tokens + plan.saved) else None


def estimate_tokens(
    by_model: Sequence[tuple[PreTrainedModel, list[PromptResponse]]], batch_tokens: int, *, whole: bool = True
) -> tuple[int, int]:
    """Return how many tokens `read_trees` would read and save. The models need no weights, since none of them runs.

    A model that later fails the comparison of `check_tree_reading` reads all tokens and saves none.
    """
    tokens, saved = 0, 0
    for model, sequences, plan in _plan_trees(by_model, batch_tokens, whole):
        tokens += sum(map(len, sequences))
        saved += 0 if plan is None or find_build_problem(model) else plan.saved
    return tokens - saved, saved


def logprobs_in_trees(
    model: PreTrainedModel, queries: Sequence[LogprobQuery], batch_tokens: int, work: str
) -> tuple[dict[int, Logprobs], int]:
    """Return the log-probs of queries to one model, by index, and how many tokens were read, common prefixes once.

    If a tree does not fit into memory, each half of the queries is read by itself. A query that does not fit alone has
    no result. `work` names the work in the warning about memory.
    """
    budget, results, tokens = find_budget(model, work), dict[int, Logprobs](), 0
    for attempt in budget.halves([len(query.sequences[0]) for query in queries]):
        own = [queries[i] for i in attempt.items]
        with attempt:
            limit = min(batch_tokens, budget.max_tokens)
            trees = read_trees([(model, [query.sequences[0] for query in own])], limit)
            answers = logprobs_of(Mixture((model,)), own, batch_tokens=limit, reader=trees)
            results |= zip(attempt.items, answers, strict=True)
            tokens += trees.tokens
    return results, tokens


def check_tree_reading(model: PreTrainedModel) -> bool:
    """Check once per model that a tree gives the numbers of padded batches. Return the result, and warn if it does not.

    The check looks at the model's architecture and reads a small tree of made-up sequences (early forks, late forks,
    forks in branches), in one row and in passes. They are always the same, so the result does not depend on the order
    of a run's sessions. The model keeps the first attention that gives the right numbers: that of packed rows, or else
    its own. `read_trees` also compares real sequences, once, and raises if they differ.
    """
    state, config = find_state(model), model.config.get_text_config(decoder=True)
    if state.reads_trees is not None:
        return state.reads_trees
    problem, own = find_build_problem(model), config._attn_implementation  # `own` is tried last
    if problem is None:
        a, b, c, d = make_up_tokens(model, 16)
        pairs = [(a + b + c, d), (a, b[:9] + d), (a + d + b, c), (a + d + c, c)]
        sequences = [PromptResponse(prompt, response) for prompt, response in pairs]
        queries = [LogprobQuery((s,)) for s in sequences]
        padded = torch.cat([x.logprobs for x in logprobs_of(Mixture((model,)), queries, batch_tokens=1)])
        packed = own if find_windows(model) is None else PACKED.get(own, own)
        for attention in dict.fromkeys((packed, own)):
            config._attn_implementation, worst = attention, 0.0
            try:
                for pack_tokens, max_piece in ((1, 10_000), (40, 20), (100, 20), (10_000, 10_000)):
                    tree = TreeStates(model, sequences, plan_tree(model, sequences, pack_tokens), max_piece)
                    reader = TreeReader({id(model): tree})
                    answers = logprobs_of(Mixture((model,)), queries, batch_tokens=1000, reader=reader)
                    found = torch.cat([x.logprobs for x in answers])
                    worst = max(worst, find_difference(model, found, padded) or 0.0)
            except Exception as error:  # models may raise anything for arguments that they do not support
                if is_out_of_memory(error):
                    config._attn_implementation = own
                    raise
                problem = f"it cannot be read with a mask and a cache ({type(error).__name__})"
            else:
                problem = f"otherwise its log-probs would differ by {worst:.1g} nats" if worst else None
            if problem is None:
                break
    if problem:
        name = model.name_or_path or type(model).__name__
        warn(f"{name} reads each turn from its beginning instead of each conversation once: {problem}")
    state.reads_trees = problem is None
    return state.reads_trees


def find_build_problem(model: PreTrainedModel) -> str | None:
    """Return why a model's architecture rules out reading a tree, or None."""
    config = model.config.get_text_config(decoder=True)
    if config._attn_implementation not in (*PACKED, *PACKED.values()):
        return f"its attention ({config._attn_implementation}) takes no custom mask"
    return find_prefix_problem(model)


def _compare_with_padded(tree: "TreeStates") -> None:
    """Raise OpdkitError unless real sequences have the same log-probs in a tree as in padded batches."""
    model = tree.model
    queries = [LogprobQuery((s,)) for s in _choose_compared(tree.sequences, _COMPARED_TOKENS)]
    compared = partial(logprobs_of, Mixture((model,)), queries, batch_tokens=_COMPARED_TOKENS)
    found, expected = (
        torch.cat([answer.logprobs for answer in answers])
        for answers in (compared(reader=TreeReader({id(model): tree})), compared())
    )
    difference = find_difference(model, found, expected)
    if difference is not None:
        raise OpdkitError(
            f"{model.name_or_path or type(model).__name__}: the log-probs of a conversation read once differ by "
            f"{difference:.1g} nats from those of its turns read one by one, which is more than rounding. Nothing is "
            "written; pass --turn-by-turn to `opdkit teacher`, --validate 0 and no --reference to `opdkit train`, and "
            "report the model to opdkit"
        )


def _choose_compared(sequences: Sequence[PromptResponse], tokens: int) -> list[PromptResponse]:
    """Return the shortest sequence, then the longest ones that fit into `tokens` in total."""
    shortest, *rest = sorted(sequences, key=len)
    chosen, room = [shortest], tokens - len(shortest)
    for sequence in reversed(rest):
        if len(sequence) <= room:
            chosen, room = [*chosen, sequence], room - len(sequence)
    return chosen


class TreeStates:
    """Last hidden states [W, H] of a model at the nodes of a tree that predict a response token."""

    def __init__(
        self, model: PreTrainedModel, sequences: Sequence[PromptResponse], plan: Plan[Any], max_piece: int
    ) -> None:
        """Read the passes of the plan; a trunk of more than `max_piece` tokens in pieces."""
        self.model, self.sequences = model, list(sequences)  # rows are found by id(sequence): keep these alive
        nodes = [torch.tensor(plan.nodes(i, len(s.prompt_ids) - 1, len(s) - 1)) for i, s in enumerate(self.sequences)]
        nodes_W = torch.cat(nodes).unique()
        self._rows = {id(s): torch.searchsorted(nodes_W, n) for s, n in zip(self.sequences, nodes, strict=True)}
        packed = model.config.get_text_config(decoder=True)._attn_implementation in PACKED.values()
        with without_gradients(model):
            if packed and plan.tokens <= max_piece:
                pack = Pack.of_passes([plan.passes], nodes_W, find_input_device(model))
                self.hidden_WH, self.output_layer = read_packed(model, pack)
            else:
                read = _read_hidden_states if find_windows(model) is not None else hidden_states_of_rows
                self.hidden_WH, self.output_layer = read(model, plan.passes, nodes_W, max_piece)

    def batch(self, sequences: Sequence[PromptResponse]) -> Callable[[slice], Tensor]:
        """Return the logits of some of its sequences, as `opdkit.model.scoring.Reader` describes."""
        rows_N = torch.cat([self._rows[id(s)] for s in sequences]).to(self.hidden_WH.device)
        return lambda rows: self.output_layer(self.hidden_WH[rows_N[rows]])


def _read_hidden_states(
    model: PreTrainedModel, passes: Sequence[Pass], nodes_W: Tensor, max_piece: int
) -> tuple[Tensor, OutputLayer]:
    """Return the last hidden states [W, H] of these nodes, and the layer that turns them into logits."""
    device, body = find_input_device(model), find_decoder(model)
    # Without the model's configuration, the cache keeps all keys even of layers with a window: branches need them.
    cache, hidden, first, cache_name = DynamicCache(), list[Tensor](), 0, find_cache_name(body)
    windows = find_windows(model) or ()
    pieces = list[tuple[Pass, range]]()
    for one in passes:  # a chain longer than `max_piece` goes through the layers in pieces
        size = min(_CHUNK, max_piece) if one.is_chain and len(one) > max_piece else len(one)
        pieces += [(one, range(start, min(start + size, len(one)))) for start in range(0, len(one), size)]
    for one, piece in progress(pieces, "reading", len(pieces), "passes"):
        if piece.start == 0 and one.prefix == 0:
            cache = DynamicCache()
        elif piece.start == 0:
            cache.crop(one.prefix - cache.get_seq_length())
        ids_1n = torch.tensor([one.ids[piece.start : piece.stop]], device=device)
        # A chain needs no positions or mask: the model makes them from the cache, as when it generates text.
        branching = dict[str, Any]()
        if not one.is_chain:
            branching["position_ids"] = torch.tensor([one.positions], device=device)
            branching["attention_mask"] = make_masks(windows, partial(_make_mask, one, model))
        output = body(input_ids=ids_1n, use_cache=True, **{cache_name: cache}, **branching)
        nodes_n = nodes_W[(nodes_W >= first) & (nodes_W < first + len(piece))] - first
        hidden.append(output.last_hidden_state[0, nodes_n.to(output.last_hidden_state.device)])
        first += len(piece)
    return torch.cat(hidden), OutputLayer(model, output)


def _make_mask(one: Pass, model: PreTrainedModel, window: int | None) -> Tensor:
    """Return the mask [1, 1, n, prefix + n] of a pass in a layer with this window, in the form of `make_mask`."""
    seen_nk, positions_k = find_visible_keys(one, 0, len(one), find_input_device(model))
    return make_mask(model, (seen_nk & within(window, positions_k[one.prefix :, None], positions_k))[None, None])
