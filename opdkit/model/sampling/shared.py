"""Drawing with each prompt held once: the draws from it are several queries of one row, and a mask keeps them apart.

What prompts have in common is read once, what follows it in one more pass, and the tokens of the draws lie behind them
in whatever slot of the row is free: a mask says which draw sees which slot, and positions are given. A draw that ends
leaves its slots to the others, and a row whose draws have all ended takes the next prompts that wait.

Shapes: B rows, n queries of a row (its draws, padded to the row that has most), S slots, R draws over all rows, V
vocabulary.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from opdkit.model.memory import Budget, OutOfMemory, budget_of, run_or_out_of_memory
from opdkit.model.sampling.attention import grouped_heads
from opdkit.model.sampling.draws import Draw, Rule, begin_anew
from opdkit.model.sampling.shares import Group, Lot, Share, lots


def draw_shared(
    model: Any, prompts: Sequence[list[int]], draws: Sequence[list[Draw]], rule: Rule, batch_tokens: int
) -> None:
    """Make the draws of each prompt. The prompts that are being read come on top of `batch_tokens`."""
    budget = budget_of(model, "sampling")
    with grouped_heads(model):
        while left := [i for i, some in enumerate(draws) if not all(draw.ended for draw in some)]:
            asked = [prompts[i] for i in left]
            wanted = [[draw for draw in draws[i] if not draw.ended] for i in left]
            for lot in lots(asked, [len(some) for some in wanted], rule.max_new_tokens, budget.within(batch_tokens)):
                if isinstance(run_or_out_of_memory(partial(_draw_lot, model, asked, wanted, rule, lot)), OutOfMemory):
                    _less_at_once(budget, lot, wanted)
                    break


def _less_at_once(budget: Budget, lot: Lot, draws: Sequence[list[Draw]]) -> None:
    """A lot did not fit: half as much from now on, or without the draw that was alone."""
    unfinished = [draws[i][k] for share in lot.shares for i, k in share.draws if not draws[i][k].ended]
    begin_anew(unfinished)
    if lot.rows == lot.draws == 1:
        unfinished[0].set_aside()
    else:
        budget.halve(lot.rows * lot.slots)


def _draw_lot(model: Any, prompts: Sequence[list[int]], draws: Sequence[list[Draw]], rule: Rule, lot: Lot) -> None:
    waiting, read = deque(lot.shares), _Reader(model, prompts)
    batch = _Batch(model, lot.rows, lot.draws, lot.slots)
    while batch.rows:
        while waiting and (row := batch.vacant()) is not None:
            share = waiting.popleft()
            batch.load(row, read(share.group), share, draws, rule)
        batch.drop_vacant()
        if batch.rows:
            batch.step(rule)


# -- prompts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Prompts:
    """A group that has been read: keys and values of its tokens, prefix first, and what the draws begin with."""

    group: Group
    cache: DynamicCache
    seen: dict[int, list[range]]  # the slots that make up each prompt
    length: dict[int, int]
    logits: dict[int, Tensor]  # [V] after each prompt


class _Reader:
    """Reads groups; the last one is kept, since the next share may be of the same."""

    def __init__(self, model: Any, prompts: Sequence[list[int]]) -> None:
        self.model, self.prompts = model, prompts
        self.last: _Prompts | None = None

    def __call__(self, group: Group) -> _Prompts:
        if self.last is None or self.last.group != group:
            self.last = None  # before the next one takes its room
            self.last = self._read(group)
        return self.last

    def _read(self, group: Group) -> _Prompts:
        cache = DynamicCache(config=self.model.config)
        prefix = self.prompts[group.prompts[0]][: group.prefix]
        ids_1n = torch.tensor([prefix], device=self.model.device)
        output = self.model(input_ids=ids_1n, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits = {i: output.logits[0, -1].float() for i in group.prompts if len(self.prompts[i]) == group.prefix}
        suffixes = {i: self.prompts[i][group.prefix :] for i in group.prompts if len(self.prompts[i]) > group.prefix}
        seen = {i: [range(group.prefix)] for i in group.prompts}
        start = group.prefix
        for i, suffix in suffixes.items():
            seen[i].append(range(start, start + len(suffix)))
            start += len(suffix)
        if suffixes:
            logits |= self._read_suffixes(cache, group.prefix, suffixes)
        return _Prompts(group, cache, seen, {i: len(self.prompts[i]) for i in group.prompts}, logits)

    def _read_suffixes(self, cache: DynamicCache, prefix: int, suffixes: dict[int, list[int]]) -> dict[int, Tensor]:
        """All suffixes in one pass, each seeing the prefix and itself. The logits after each."""
        model, lengths = self.model, [len(s) for s in suffixes.values()]
        ids_1n = torch.tensor([[t for s in suffixes.values() for t in s]], device=model.device)
        positions_1n = torch.tensor([[prefix + k for n in lengths for k in range(n)]], device=model.device)
        causal = [torch.ones(n, n, dtype=torch.bool).tril() for n in lengths]
        seen_nS = torch.cat([torch.ones(sum(lengths), prefix, dtype=torch.bool), torch.block_diag(*causal)], -1)
        last = torch.tensor(lengths, device=model.device).cumsum(0) - 1
        output = model(
            input_ids=ids_1n,
            attention_mask=_hidden(~seen_nS, model)[None, None],
            position_ids=positions_1n,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=last,
        )
        return dict(zip(suffixes, output.logits[0].float(), strict=True))


def _hidden(hidden: Tensor, model: Any) -> Tensor:
    """What is added to attention scores: 0, or where `hidden` the lowest number there is."""
    lowest = torch.finfo(model.dtype).min
    return torch.zeros(hidden.shape, dtype=model.dtype, device=model.device).masked_fill(
        hidden.to(model.device), lowest
    )


# -- rows -----------------------------------------------------------------------------------------------------------


@dataclass
class _Lane:
    """A draw and its place in the mask of its row."""

    draw: Draw
    number: int
    prompt_length: int
    slots: list[int]

    @property
    def position(self) -> int:
        """Of the last token drawn."""
        return self.prompt_length + len(self.draw.ids) - 1


class _Row:
    """The draws of one share that have not ended, and the slots that nobody uses."""

    def __init__(self) -> None:
        self.lanes: list[_Lane] = []
        self.free: list[int] = []  # a heap: low slots first, so that few are looked at
        self.used = 0  # slots up to the last one in use

    def take(self) -> int:
        slot = heapq.heappop(self.free)
        self.used = max(self.used, slot + 1)
        return slot

    def end(self, lane: _Lane) -> None:
        self.lanes.remove(lane)
        for slot in lane.slots:
            heapq.heappush(self.free, slot)


@dataclass
class _Place:
    """Where the tokens of a step go, and how many slots are looked at."""

    rows_B1: Tensor
    slots_Bn: Tensor
    used: int


class _SlotLayer(DynamicLayer):
    """Keys and values of a layer in buffers [B, heads, S + 1, head size]; the last slot is where padding goes."""

    def __init__(self, place: _Place, read: DynamicLayer, rows: int, slots: int) -> None:
        super().__init__()
        self.place = place
        self.lazy_initialization(read.keys, read.values)
        self.keys, self.values = (
            torch.zeros(rows, x.shape[1], slots + 1, x.shape[3], dtype=x.dtype, device=x.device)
            for x in (read.keys, read.values)
        )

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        place = self.place
        self.keys[place.rows_B1, :, place.slots_Bn] = key_states.transpose(1, 2)
        self.values[place.rows_B1, :, place.slots_Bn] = value_states.transpose(1, 2)
        return self.keys[:, :, : place.used], self.values[:, :, : place.used]


class _Batch:
    """Rows side by side, each with the draws of one share."""

    def __init__(self, model: Any, rows: int, draws: int, slots: int) -> None:
        self.model, self.device, self.slots = model, model.device, slots
        self.rows = [_Row() for _ in range(rows)]
        none = torch.zeros(0, 0, dtype=torch.long)
        self.place = _Place(none, none, 0)
        self.cache: Cache | None = None
        # Added to attention scores. The last row is for padding, which must see something: the first token.
        self.mask_BnS = _hidden(torch.ones(rows, draws + 1, slots, dtype=torch.bool), model)
        self.mask_BnS[:, -1, 0] = 0

    def vacant(self) -> int | None:
        return next((b for b, row in enumerate(self.rows) if not row.lanes), None)

    def load(self, b: int, read: _Prompts, share: Share, draws: Sequence[list[Draw]], rule: Rule) -> None:
        """Put a share into row b and draw its first tokens."""
        if self.cache is None:
            self.cache = Cache([_SlotLayer(self.place, x, len(self.rows), self.slots) for x in read.cache.layers])
        tokens = read.group.tokens
        for mine, layer in zip(self.cache.layers, read.cache.layers, strict=True):
            mine.keys[b, :, :tokens], mine.values[b, :, :tokens] = layer.keys[0], layer.values[0]
        row, self.mask_BnS[b, :-1] = self.rows[b], torch.finfo(self.model.dtype).min
        row.free, row.used = list(range(tokens, self.slots)), tokens
        lanes = [_Lane(draws[i][k], n, read.length[i], []) for n, (i, k) in enumerate(share.draws)]
        for lane, (i, _) in zip(lanes, share.draws, strict=True):
            for slots in read.seen[i]:
                self.mask_BnS[b, lane.number, slots.start : slots.stop] = 0
        goes_on = rule.extend([lane.draw for lane in lanes], torch.stack([read.logits[i] for i, _ in share.draws]))
        row.lanes = [lane for lane, on in zip(lanes, goes_on, strict=True) if on]

    def drop_vacant(self) -> None:
        keep = [b for b, row in enumerate(self.rows) if row.lanes]
        if len(keep) == len(self.rows):
            return
        self.rows = [self.rows[b] for b in keep]
        if self.rows and self.cache is not None:
            keep_B = torch.tensor(keep, device=self.device)
            self.mask_BnS = self.mask_BnS[keep_B]
            self.cache.batch_select_indices(keep_B)

    def step(self, rule: Rule) -> None:
        """Read the last token of every draw and draw the next one; draws that end leave."""
        lanes = [lane for row in self.rows for lane in row.lanes]
        goes_on = rule.extend([lane.draw for lane in lanes], self._logits())
        ended = {id(lane) for lane, on in zip(lanes, goes_on, strict=True) if not on}
        for row in self.rows:
            for lane in [lane for lane in row.lanes if id(lane) in ended]:
                row.end(lane)

    def _logits(self) -> Tensor:
        """[R, V] after the last token of every draw, row by row."""
        n = max(len(row.lanes) for row in self.rows)
        padding = (0, 0, self.slots, self.mask_BnS.shape[1] - 1)
        queries = [[self._query(row, lane) for lane in row.lanes] for row in self.rows]
        fields = torch.tensor([some + [padding] * (n - len(some)) for some in queries], device=self.device)
        ids_Bn, positions_Bn, slots_Bn, numbers_Bn = fields.unbind(-1)
        rows_B1 = torch.arange(len(self.rows), device=self.device)[:, None]
        real_Bn = slots_Bn < self.slots
        self.mask_BnS[rows_B1.expand_as(slots_Bn)[real_Bn], numbers_Bn[real_Bn], slots_Bn[real_Bn]] = 0
        self.place.rows_B1, self.place.slots_Bn = rows_B1, slots_Bn
        self.place.used = used = max(row.used for row in self.rows)
        output = self.model(
            input_ids=ids_Bn,
            attention_mask=self.mask_BnS[rows_B1, numbers_Bn, :used][:, None],
            position_ids=positions_Bn,
            past_key_values=self.cache,
            use_cache=True,
        )
        logits_RV: Tensor = output.logits[real_Bn].float()
        return logits_RV

    def _query(self, row: _Row, lane: _Lane) -> tuple[int, int, int, int]:
        lane.slots.append(row.take())
        return lane.draw.ids[-1], lane.position, lane.slots[-1], lane.number
