"""Sampling with each prompt held once: its samples are several queries of one row, and a mask keeps them apart.

    slots     0 1 2 3 4 5   6 7     8 9      10      11      12 ...
              prefix        suffix  suffix   new tokens of samples a, b, c, wherever a slot is free
                            of p    of q     a       b       c

The common prefix of a group's prompts is read once, what follows it in one more pass. The new tokens lie behind them in
whatever slot of the row is free: a mask says which sample sees which slot, and positions are given. A sample that ends
leaves its slots to the others, and a row whose samples have all ended takes the next prompts that wait.

Shapes: B rows, n queries of a row (its samples, padded to the row that has most), S slots, R samples of all rows, V
vocabulary.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from opdkit.model.memory import Attempt, budget_of
from opdkit.model.sampling.attention import grouped_heads
from opdkit.model.sampling.batches import Batch, PromptGroup, SharedPrompt, plan_batches
from opdkit.model.sampling.samples import Sampling, SamplingRule, restart


def sample_shared(
    model: Any,
    prompts: Sequence[list[int]],
    samplings: Sequence[list[Sampling]],
    rule: SamplingRule,
    batch_tokens: int,
) -> None:
    """Grow the samples of each prompt to their ends. Prompts that are being read come on top of `batch_tokens`.

    Where a batch does not fit into memory, its unfinished samples are restarted in smaller ones.
    """
    budget = budget_of(model, "sampling")
    with grouped_heads(model):
        while left := [i for i, group in enumerate(samplings) if any(s.finish_reason is None for s in group)]:
            waiting = [prompts[i] for i in left]
            unfinished = [[s for s in samplings[i] if s.finish_reason is None] for i in left]
            tokens, counts = budget.within(batch_tokens), [len(group) for group in unfinished]
            for batch in plan_batches(waiting, counts, rule.max_new_tokens, tokens):
                with Attempt(lockstep=budget.lockstep) as attempt:
                    _run_batch(model, waiting, unfinished, rule, batch)
                if attempt.failed:
                    failed = [unfinished[i][k] for shared in batch.shared for i, k in shared.samples]
                    failed = [s for s in failed if s.finish_reason is None]
                    restart(failed)
                    if batch.rows == batch.samples == 1:  # the one that was running did not fit by itself
                        restart(failed[:1], "memory")
                    else:
                        budget.halve(batch.rows * batch.slots)
                    break


def _run_batch(
    model: Any, prompts: Sequence[list[int]], samplings: Sequence[list[Sampling]], rule: SamplingRule, batch: Batch
) -> None:
    waiting, last = deque(batch.shared), None
    rows = _Rows(model, batch.rows, batch.samples, batch.slots)
    while rows.rows:
        vacant = [b for b, row in enumerate(rows.rows) if not row.queries]
        while waiting and vacant:
            shared = waiting.popleft()
            if last is None or last.group != shared.group:  # the next shared prompt may be of the same group
                last = None  # free its memory before the next one is read
                last = _read_group(model, prompts, shared.group)
            rows.load(vacant[0], last, shared, samplings, rule)
            if rows.rows[vacant[0]].queries:  # else all of its samples have ended with their first token
                vacant.pop(0)
        rows.drop_vacant()
        if rows.rows:
            rows.step(rule)


# -- prompts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _GroupCache:
    """Group of prompts that has been read: the KV cache of its tokens, prefix first, and the logits after each."""

    group: PromptGroup
    cache: DynamicCache
    slots: dict[int, list[range]]  # prompt -> the slots of its tokens
    lengths: dict[int, int]  # prompt -> tokens
    logits: dict[int, Tensor]  # prompt -> [V] float32 after its last token


def _read_group(model: Any, prompts: Sequence[list[int]], group: PromptGroup) -> _GroupCache:
    cache = DynamicCache(config=model.config)
    ids_1n = torch.tensor([prompts[group.prompts[0]][: group.prefix]], device=model.device)
    output = model(input_ids=ids_1n, past_key_values=cache, use_cache=True, logits_to_keep=1)
    logits = {i: output.logits[0, -1].float() for i in group.prompts if len(prompts[i]) == group.prefix}
    suffixes = {i: prompts[i][group.prefix :] for i in group.prompts if len(prompts[i]) > group.prefix}
    slots = {i: [range(group.prefix)] for i in group.prompts}
    start = group.prefix
    for i, suffix in suffixes.items():
        slots[i].append(range(start, start + len(suffix)))
        start += len(suffix)
    if suffixes:
        logits |= _read_suffixes(model, cache, group.prefix, suffixes)
    return _GroupCache(group, cache, slots, {i: len(prompts[i]) for i in group.prompts}, logits)


def _read_suffixes(model: Any, cache: DynamicCache, prefix: int, suffixes: dict[int, list[int]]) -> dict[int, Tensor]:
    """Read all suffixes in one pass, each seeing the prefix and itself; return the logits [V] after each."""
    lengths = [len(s) for s in suffixes.values()]
    ids_1n = torch.tensor([[t for s in suffixes.values() for t in s]], device=model.device)
    positions_1n = torch.tensor([[prefix + k for n in lengths for k in range(n)]], device=model.device)
    causal = [torch.ones(n, n, dtype=torch.bool).tril() for n in lengths]
    visible_nS = torch.cat([torch.ones(sum(lengths), prefix, dtype=torch.bool), torch.block_diag(*causal)], -1)
    last = torch.tensor(lengths, device=model.device).cumsum(0) - 1
    output = model(
        input_ids=ids_1n,
        attention_mask=_additive_mask(~visible_nS, model)[None, None],
        position_ids=positions_1n,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=last,
    )
    return dict(zip(suffixes, output.logits[0].float(), strict=True))


def _additive_mask(hidden: Tensor, model: Any) -> Tensor:
    """Return what is added to attention scores: 0, or the lowest number of the dtype where `hidden`."""
    lowest = torch.finfo(model.dtype).min
    return torch.zeros(hidden.shape, dtype=model.dtype, device=model.device).masked_fill(
        hidden.to(model.device), lowest
    )


# -- rows -----------------------------------------------------------------------------------------------------------


@dataclass
class _Query:
    """Sample as a query of its row: `number` is its line in the row's mask, `slots` hold its new tokens."""

    sampling: Sampling
    number: int
    prompt_length: int
    slots: list[int] = field(default_factory=list)


@dataclass
class _Row:
    """Samples of one shared prompt that have not ended, and the slots that nobody uses."""

    queries: list[_Query] = field(default_factory=list)
    free: list[int] = field(default_factory=list)  # a heap: low slots first, so that few are looked at
    used: int = 0  # slots up to the last one that was ever in use


@dataclass
class _Step:
    """Where the cache puts the tokens of a step, and how many slots attention looks at."""

    rows_B1: Tensor
    slots_Bn: Tensor
    used: int


class _SlotLayer(DynamicLayer):
    """Keys and values of a layer in buffers [B, heads, S + 1, head size]; the last slot is where padding goes."""

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
        self.model, self.device, self.slots = model, model.device, slots
        self.rows = [_Row() for _ in range(rows)]
        nothing = torch.zeros(0, 0, dtype=torch.long)
        self.now = _Step(nothing, nothing, 0)
        self.cache: Cache | None = None
        # Added to attention scores. The last line is for padding, which must see something: the first token.
        self.mask_BnS = _additive_mask(torch.ones(rows, samples + 1, slots, dtype=torch.bool), model)
        self.mask_BnS[:, -1, 0] = 0

    def load(
        self,
        b: int,
        prompt: _GroupCache,
        shared: SharedPrompt,
        samplings: Sequence[list[Sampling]],
        rule: SamplingRule,
    ) -> None:
        """Put a shared prompt into row b and draw the first token of each of its samples."""
        if self.cache is None:
            self.cache = Cache([_SlotLayer(self.now, x, len(self.rows), self.slots) for x in prompt.cache.layers])
        tokens = prompt.group.tokens
        for layer, source in zip(self.cache.layers, prompt.cache.layers, strict=True):
            layer.keys[b, :, :tokens], layer.values[b, :, :tokens] = source.keys[0], source.values[0]
        row, self.mask_BnS[b, :-1] = self.rows[b], torch.finfo(self.model.dtype).min
        row.free, row.used = list(range(tokens, self.slots)), tokens
        queries = [_Query(samplings[i][k], n, prompt.lengths[i]) for n, (i, k) in enumerate(shared.samples)]
        for query, (i, _) in zip(queries, shared.samples, strict=True):
            for slots in prompt.slots[i]:
                self.mask_BnS[b, query.number, slots.start : slots.stop] = 0
        logits_RV = torch.stack([prompt.logits[i] for i, _ in shared.samples])
        continues = rule.extend([query.sampling for query in queries], logits_RV)
        row.queries = [query for query, goes_on in zip(queries, continues, strict=True) if goes_on]

    def drop_vacant(self) -> None:
        """Remove the rows whose samples have all ended."""
        keep = [b for b, row in enumerate(self.rows) if row.queries]
        if len(keep) == len(self.rows):
            return
        self.rows = [self.rows[b] for b in keep]
        if self.rows and self.cache is not None:
            keep_B = torch.tensor(keep, device=self.device)
            self.mask_BnS = self.mask_BnS[keep_B]
            self.cache.batch_select_indices(keep_B)

    def step(self, rule: SamplingRule) -> None:
        """Read the last token of every sample and draw the next one; samples that end leave their slots."""
        queries = [(row, query) for row in self.rows for query in row.queries]
        continues = rule.extend([query.sampling for _, query in queries], self._logits())
        for (row, query), goes_on in zip(queries, continues, strict=True):
            if not goes_on:
                row.queries = [other for other in row.queries if other is not query]
                for slot in query.slots:
                    heapq.heappush(row.free, slot)

    def _logits(self) -> Tensor:
        """Read the last token of every sample; return float32 logits [R, V], row by row."""
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
        self.mask_BnS[rows_B1.expand_as(slots_Bn)[real_Bn], numbers_Bn[real_Bn], slots_Bn[real_Bn]] = 0
        self.now.rows_B1, self.now.slots_Bn = rows_B1, slots_Bn
        self.now.used = used = max(row.used for row in self.rows)
        output = self.model(
            input_ids=ids_Bn,
            attention_mask=self.mask_BnS[rows_B1, numbers_Bn, :used][:, None],
            position_ids=positions_Bn,
            past_key_values=self.cache,
            use_cache=True,
        )
        logits_RV: Tensor = output.logits[real_Bn].float()
        return logits_RV
