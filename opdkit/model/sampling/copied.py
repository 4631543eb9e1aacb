"""Sampling with a model whose cache is used as it is: every prompt is read once, every sample is a row with a copy.

For layers that see a window or keep a state: they hold no keys and values that several samples could look at.
"""

from collections.abc import Sequence
from typing import Any

import torch

from opdkit.model.memory import budget_of
from opdkit.model.sampling.samples import Sampling, SamplingRule, restart

# Rows that run side by side: each has logits over the whole vocabulary.
MAX_ROWS = 256


def sample_copied(
    model: Any,
    prompts: Sequence[list[int]],
    samplings: Sequence[list[Sampling]],
    rule: SamplingRule,
    batch_tokens: int,
) -> None:
    """Grow the samples of each prompt to their ends, within `batch_tokens` unless a single one needs more."""
    rows = [(i, sampling) for i, group in enumerate(samplings) for sampling in group]
    lengths = [len(prompts[i]) + rule.max_new_tokens for i, _ in rows]
    for attempt in budget_of(model, "sampling").batches(lengths, batch_tokens, _batch_rows):
        unfinished = [rows[k] for k in attempt.items if rows[k][1].finish_reason is None]
        restart(sampling for _, sampling in unfinished)
        with attempt:
            _run_rows(model, prompts, unfinished, rule)
        if attempt.too_large:
            restart([rows[attempt.items[0]][1]], "memory")


def _batch_rows(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Return batches of rows of similar length, at most `batch_tokens` tokens with their padding, the longest first."""
    batches: list[list[int]] = []
    for k in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        last = batches[-1] if batches else []
        if last and lengths[last[0]] * (len(last) + 1) <= batch_tokens and len(last) < MAX_ROWS:
            last.append(k)
        else:
            batches.append([k])
    return batches


def _run_rows(model: Any, prompts: Sequence[list[int]], rows: list[tuple[int, Sampling]], rule: SamplingRule) -> None:
    """Grow the samples of some rows to their ends. A function of its own, so that a failed attempt frees the cache."""
    running = _Rows(model, prompts, rows) if rows else None
    while running and running.step(rule):
        pass


class _Rows:
    """Samples of one batch while they grow, one row each. B prompts, R rows, T tokens."""

    def __init__(self, model: Any, prompts: Sequence[list[int]], rows: Sequence[tuple[int, Sampling]]) -> None:
        """Read every prompt once, padded on the left, then give each sample a copy of its keys and values."""
        self.model, self.device = model, model.device
        self.samplings = [sampling for _, sampling in rows]
        order = list(dict.fromkeys(i for i, _ in rows))
        owner_R = torch.tensor([order.index(i) for i, _ in rows], device=self.device)
        longest = max(len(prompts[i]) for i in order)
        ids_BT = torch.zeros(len(order), longest, dtype=torch.long)
        mask_BT = torch.zeros_like(ids_BT)
        for row, prompt in enumerate(prompts[i] for i in order):
            ids_BT[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask_BT[row, longest - len(prompt) :] = 1
        ids_BT, mask_BT = ids_BT.to(self.device), mask_BT.to(self.device)
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        output = model(
            input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT, use_cache=True, logits_to_keep=1
        )
        self.cache = output.past_key_values
        self.cache.reorder_cache(owner_R)  # which takes any rows; layers with a state have no batch_select_indices
        self.mask_RT = mask_BT[owner_R]
        self.position_R = positions_BT[owner_R, -1]
        self.logits_RV = output.logits[:, -1].float()[owner_R]

    def step(self, rule: SamplingRule) -> bool:
        """Draw one token for every row and read it; return False when all rows have ended."""
        keep = [row for row, continues in enumerate(rule.extend(self.samplings, self.logits_RV)) if continues]
        if not keep:
            return False
        if len(keep) < len(self.samplings):
            keep_R = torch.tensor(keep, device=self.device)
            self.cache.reorder_cache(keep_R)
            self.mask_RT, self.position_R = self.mask_RT[keep_R], self.position_R[keep_R]
            self.samplings = [self.samplings[row] for row in keep]
        token_R = torch.tensor([sampling.ids[-1] for sampling in self.samplings], device=self.device)
        self.mask_RT = torch.cat([self.mask_RT, torch.ones_like(self.mask_RT[:, :1])], dim=-1)
        self.position_R = self.position_R + 1
        output = self.model(
            input_ids=token_R[:, None],
            attention_mask=self.mask_RT,
            position_ids=self.position_R[:, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        self.logits_RV = output.logits[:, -1].float()
        return True
