"""Sampling with one KV cache per prompt: its samples are queries of the same row, and a mask keeps them apart.

    slots     0 1 2 3 4 5   6 7     8 9      10      11      12 ...
              prefix        suffix  suffix   new tokens of samples a, b, c, wherever a slot is free
                            of p    of q     a       b       c

The common prefix of a group's prompts is read once, and all suffixes in one more pass. New tokens take any free slot of
the row: a mask says which sample sees which slot, and positions are passed to the model. A sample that ends frees its
slots for the others. A row whose samples have all ended takes the next waiting prompts.

Shapes: B rows, n queries of a row (its samples, padded to the row with the most), S slots, R samples of all rows, V
vocabulary.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from opdkit.console import warn
from opdkit.model.load import find_cache_name
from opdkit.model.memory import Attempt, find_budget, find_state
from opdkit.model.sampling.attention import grouped_heads
from opdkit.model.sampling.batches import Batch, PromptGroup, SharedPrompt, plan_batches
from opdkit.model.sampling.made_up import find_sampling_problem
from opdkit.model.sampling.samples import Sampling, SamplingRule, restart
from opdkit.model.windows import find_windows, make_additive_mask, make_masks, make_up_tokens, within


def sample_shared(
    model: Any, prompts: Sequence[list[int]], samplings: Sequence[list[Sampling]], rule: SamplingRule, batch_tokens: int
) -> None:
    """Sample until all samples of each prompt have ended. The group that is being read comes on top of `batch_tokens`.

    If a batch does not fit into memory, its unfinished samples are restarted in smaller batches.
    """
    budget = find_budget(model, "sampling")
    with grouped_heads(model):
        while left := [i for i, group in enumerate(samplings) if any(s.finish_reason is None for s in group)]:
            waiting = [prompts[i] for i in left]
            unfinished = [[s for s in samplings[i] if s.finish_reason is None] for i in left]
            tokens, counts = min(batch_tokens, budget.max_tokens), [len(group) for group in unfinished]
            for batch in plan_batches(waiting, counts, rule.max_new_tokens, tokens):
                with Attempt(lockstep=budget.lockstep) as attempt:
                    _run_batch(model, waiting, unfinished, rule, batch)
                if attempt.failed:
                    failed = [unfinished[i][k] for shared in batch.shared for i, k in shared.samples]
                    failed = [s for s in failed if s.finish_reason is None]
                    restart(failed)
                    if batch.rows == batch.samples == 1:  # the running sample did not fit by itself
                        restart(failed[:1], "memory")
                    else:
                        budget.halve(batch.rows * batch.slots)
                    break


def check_shared_cache(model: Any) -> bool:
    """Check once per model that samples with a shared cache have the log-probs of scoring. Return the result.

    Made-up prompts that begin alike are sampled from. Warns if the check fails. Out of memory is raised.
    """
    state = find_state(model)
    if state.shares_cache is None:
        a, b, c, _ = make_up_tokens(model, 16)

        def sample(prompts: Sequence[list[int]], samplings: Sequence[list[Sampling]], rule: SamplingRule) -> None:
            for batch in plan_batches(prompts, list(map(len, samplings)), rule.max_new_tokens, 10_000):
                _run_batch(model, prompts, samplings, rule, batch)

        with grouped_heads(model):
            problem, _ = find_sampling_problem(model, [a + b, a + c[:9]], [2, 1], sample)
        state.shares_cache = not problem
        if problem:
            name = model.name_or_path or type(model).__name__
            warn(f"{name} copies a prompt's cache for each sample of it, which takes more memory: {problem}")
    return state.shares_cache


def _run_batch(
    model: Any, prompts: Sequence[list[int]], samplings: Sequence[list[Sampling]], rule: SamplingRule, batch: Batch
) -> None:
    waiting, last = deque(batch.shared), None
    rows = _Rows(model, batch.rows, batch.samples, batch.slots)
    while rows.rows:
        vacant = [b for b, row in enumerate(rows.rows) if not row.queries]
        while waiting and vacant:
            shared = waiting.popleft()
            if last is None or last.group != shared.group:  # neighbours may belong to the same group
                last = None  # free its memory before the next group is read
                last = _read_group(model, prompts, shared.group)
            first = [samplings[i][k] for i, k in shared.samples]
            rule.extend(first, torch.stack([last.logits[i] for i, _ in shared.samples]))
            if any(sampling.finish_reason is None for sampling in first):
                rows.load(vacant.pop(0), last, shared, samplings)
        rows.drop_vacant()
        if rows.rows:
            logits_RV = rows.read_last_tokens()
            rule.extend([query.sampling for row in rows.rows for query in row.queries], logits_RV)
            rows.free_slots()


@dataclass(frozen=True)
class _GroupCache:
    """Group of prompts that has been read: the KV cache of its tokens, prefix first, and logits after each prompt."""

    group: PromptGroup
    cache: DynamicCache
    slots: dict[int, list[range]]  # prompt -> the slots of its tokens
    logits: dict[int, Tensor]  # prompt -> [V] float32 after its last token


def _read_group(model: Any, prompts: Sequence[list[int]], group: PromptGroup) -> _GroupCache:
    """Read the prefix of a group, then all suffixes in one pass, in which each sees the prefix and itself."""
    cache, prefix = DynamicCache(), group.prefix  # without the configuration, layers with a window keep all keys
    ids_1n = torch.tensor([prompts[group.prompts[0]][:prefix]], device=model.device)
    cache_name = find_cache_name(model)
    output = model(input_ids=ids_1n, use_cache=True, logits_to_keep=1, **{cache_name: cache})
    logits = {i: output.logits[0, -1].float() for i in group.prompts if len(prompts[i]) == prefix}
    suffixes = {i: prompts[i][prefix:] for i in group.prompts if len(prompts[i]) > prefix}
    lengths = [len(suffix) for suffix in suffixes.values()]
    slots = {i: [range(prefix)] for i in group.prompts}
    for i, n, start in zip(suffixes, lengths, accumulate(lengths, initial=prefix), strict=False):
        slots[i].append(range(start, start + n))
    if suffixes:
        causal = [torch.ones(n, n, dtype=torch.bool).tril() for n in lengths]
        visible_nS = torch.cat([torch.ones(sum(lengths), prefix, dtype=torch.bool), torch.block_diag(*causal)], -1)
        positions_n = torch.tensor([prefix + k for n in lengths for k in range(n)])
        of_slots = torch.cat([torch.arange(prefix), positions_n])

        def mask(window: int | None) -> Tensor:
            seen_nS = visible_nS & within(window, positions_n[:, None], of_slots)
            return make_additive_mask(seen_nS.to(model.device), model.dtype)[None, None]

        output = model(
            input_ids=torch.tensor([[t for suffix in suffixes.values() for t in suffix]], device=model.device),
            attention_mask=make_masks(find_windows(model) or (), mask),
            position_ids=positions_n[None].to(model.device),
            use_cache=True,
            logits_to_keep=torch.tensor(lengths, device=model.device).cumsum(0) - 1,
            **{cache_name: cache},
        )
        logits |= zip(suffixes, output.logits[0].float(), strict=True)
    return _GroupCache(group, cache, slots, logits)


@dataclass
class _Query:
    """Sample as a query of its row: `number` is its line in the row's mask, and `slots` hold its new tokens."""

    sampling: Sampling
    number: int
    prompt_length: int
    slots: list[int] = field(default_factory=list)


@dataclass
class _Row:
    """Samples of one shared prompt that have not ended, and the free slots."""

    queries: list[_Query] = field(default_factory=list)
    free: list[int] = field(default_factory=list)  # a heap: low slots first, so that attention reads few slots
    used: int = 0  # slots up to the highest one that was ever in use


@dataclass
class _Step:
    """Rows and slots in which the cache stores the tokens of a step, and the number of slots that attention reads."""

    rows_B1: Tensor
    slots_Bn: Tensor
    used: int


class _SlotLayer(DynamicLayer):
    """Keys and values of a layer in buffers [B, heads, S + 1, head size]; padding goes to the last slot."""

    def __init__(self, step: _Step, prompt: DynamicLayer, rows: int, slots: int) -> None:
        super().__init__()
        self.step = step
        self.lazy_initialization(prompt.keys, prompt.values)
        self.keys, self.values = (
            torch.zeros(rows, x.shape[1], slots + 1, x.shape[3], dtype=x.dtype, device=x.device)
            for x in (prompt.keys, prompt.values)
        )

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        step = self.step
        self.keys[step.rows_B1, :, step.slots_Bn] = key_states.transpose(1, 2)
        self.values[step.rows_B1, :, step.slots_Bn] = value_states.transpose(1, 2)
        return self.keys[:, :, : step.used], self.values[:, :, : step.used]


class _Rows:
    """Rows side by side, each with the samples of one shared prompt."""

    def __init__(self, model: Any, rows: int, samples: int, slots: int) -> None:
        self.model, self.device, self.slots, self.cache_name = model, model.device, slots, find_cache_name(model)
        self.rows = [_Row() for _ in range(rows)]
        nothing = torch.zeros(0, 0, dtype=torch.long)
        self.now = _Step(nothing, nothing, 0)
        self.cache: Cache | None = None
        # Added to attention scores. The last line is for padding queries, which must see at least one token: the first.
        self.lowest = torch.finfo(model.dtype).min
        self.mask_BnS = torch.full((rows, samples + 1, slots), self.lowest, dtype=model.dtype, device=model.device)
        self.mask_BnS[:, -1, 0] = 0
        self.windows = set(find_windows(model) or ())
        self.positions_BS = torch.zeros(rows, slots, dtype=torch.long, device=model.device)  # of the slots' tokens

    def load(self, b: int, prompt: _GroupCache, shared: SharedPrompt, samplings: Sequence[list[Sampling]]) -> None:
        """Put a shared prompt into row b, with its samples except those that ended with their first token."""
        if self.cache is None:
            self.cache = Cache([_SlotLayer(self.now, x, len(self.rows), self.slots) for x in prompt.cache.layers])
        tokens = prompt.group.tokens
        for layer, source in zip(self.cache.layers, prompt.cache.layers, strict=True):
            layer.keys[b, :, :tokens], layer.values[b, :, :tokens] = source.keys[0], source.values[0]
        row, self.mask_BnS[b, :-1] = self.rows[b], self.lowest
        row.free, row.used = list(range(tokens, self.slots)), tokens
        row.queries = []
        for number, (i, k) in enumerate(shared.samples):
            if samplings[i][k].finish_reason is None:
                position = 0
                for slots in prompt.slots[i]:
                    positions = position + torch.arange(len(slots), device=self.device)
                    self.mask_BnS[b, number, slots.start : slots.stop] = 0
                    self.positions_BS[b, slots.start : slots.stop] = positions
                    position += len(slots)
                row.queries.append(_Query(samplings[i][k], number, position))

    def drop_vacant(self) -> None:
        """Remove the rows whose samples have all ended."""
        keep = [b for b, row in enumerate(self.rows) if row.queries]
        if len(keep) == len(self.rows):
            return
        self.rows = [self.rows[b] for b in keep]
        if self.rows and self.cache is not None:
            keep_B = torch.tensor(keep, device=self.device)
            self.mask_BnS, self.positions_BS = self.mask_BnS[keep_B], self.positions_BS[keep_B]
            self.cache.batch_select_indices(keep_B)

    def read_last_tokens(self) -> Tensor:
        """Read the last token of every sample, row by row, and return float32 logits [R, V] for the next tokens."""
        n = max(len(row.queries) for row in self.rows)
        padding = (0, 0, self.slots, self.mask_BnS.shape[1] - 1)
        inputs = list[list[tuple[int, int, int, int]]]()  # [B, n] of id, position, slot and line of the mask
        for row in self.rows:
            inputs.append([])
            for query in row.queries:
                slot, ids = heapq.heappop(row.free), query.sampling.ids
                row.used = max(row.used, slot + 1)
                query.slots.append(slot)
                inputs[-1].append((ids[-1], query.prompt_length + len(ids) - 1, slot, query.number))
        fields = torch.tensor([row + [padding] * (n - len(row)) for row in inputs], device=self.device)
        ids_Bn, positions_Bn, slots_Bn, numbers_Bn = fields.unbind(-1)
        rows_B1 = torch.arange(len(self.rows), device=self.device)[:, None]
        real_Bn = slots_Bn < self.slots
        rows_R, slots_R = rows_B1.expand_as(slots_Bn)[real_Bn], slots_Bn[real_Bn]
        self.mask_BnS[rows_R, numbers_Bn[real_Bn], slots_R] = 0
        self.positions_BS[rows_R, slots_R] = positions_Bn[real_Bn]
        self.now.rows_B1, self.now.slots_Bn = rows_B1, slots_Bn
        self.now.used = used = max(row.used for row in self.rows)
        visible_BnS = self.mask_BnS[rows_B1, numbers_Bn, :used]

        def mask(window: int | None) -> Tensor:
            if window is None:
                return visible_BnS[:, None]
            near_BnS = within(window, positions_Bn[..., None], self.positions_BS[:, None, :used])
            return visible_BnS.masked_fill(~near_BnS, self.lowest)[:, None]

        output = self.model(
            input_ids=ids_Bn,
            attention_mask=make_masks(self.windows, mask),
            position_ids=positions_Bn,
            use_cache=True,
            **{self.cache_name: self.cache},
        )
        return output.logits[real_Bn].float()

    def free_slots(self) -> None:
        """Remove the samples that have ended, and free their slots."""
        for row in self.rows:
            ended = [query for query in row.queries if query.sampling.finish_reason is not None]
            row.queries = [query for query in row.queries if query.sampling.finish_reason is None]
            for slot in (slot for query in ended for slot in query.slots):
                heapq.heappush(row.free, slot)
