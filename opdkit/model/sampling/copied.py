"""Drawing from a model whose cache is taken as it is: every prompt read alone, every draw a row with a copy of it.

For layers that see a window or keep a state, which hold no keys and values that several draws could look at.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opdkit.model.memory import OutOfMemory, budget_of, in_batches
from opdkit.model.sampling.draws import Draw, Rule, begin_anew

# Rows that run side by side: each has logits over the whole vocabulary.
MAX_ROWS = 256


def draw_copied(
    model: Any, prompts: Sequence[list[int]], draws: Sequence[list[Draw]], rule: Rule, batch_tokens: int
) -> None:
    """Make the draws of each prompt, within `batch_tokens` where a single draw does not need more."""
    asked = [(i, draw) for i, some in enumerate(draws) for draw in some]
    longest = [len(prompts[i]) + rule.max_new_tokens for i, _ in asked]

    def make(batch: list[int]) -> None:
        some = [asked[k] for k in batch if not asked[k][1].ended]
        begin_anew(draw for _, draw in some)
        rows = _Rows(model, prompts, some) if some else None
        while rows and rows.step(rule):
            pass

    for batch, made in in_batches(budget_of(model, "sampling"), longest, batch_tokens, _batches, make):
        if isinstance(made, OutOfMemory):
            asked[batch[0]][1].set_aside()


def _batches(longest: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Indices of rows that run side by side: similar lengths, at most `batch_tokens` with their padding."""
    found: list[list[int]] = []
    for k in sorted(range(len(longest)), key=lambda k: -longest[k]):
        if found and longest[found[-1][0]] * (len(found[-1]) + 1) <= batch_tokens and len(found[-1]) < MAX_ROWS:
            found[-1].append(k)
        else:
            found.append([k])
    return found


class _Rows:
    """The draws of one batch while they grow, a row each. B prompts, R rows, T tokens."""

    def __init__(self, model: Any, prompts: Sequence[list[int]], asked: Sequence[tuple[int, Draw]]) -> None:
        self.model, self.device = model, model.device
        self.draws = [draw for _, draw in asked]
        order = list(dict.fromkeys(i for i, _ in asked))
        owner_R = torch.tensor([order.index(i) for i, _ in asked], device=self.device)
        self._prefill([prompts[i] for i in order], owner_R)

    def _prefill(self, prompts: Sequence[list[int]], owner_R: Tensor) -> None:
        """Read every prompt once, padded on the left, then give each draw a copy of its keys and values."""
        longest = max(map(len, prompts))
        ids_BT = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask_BT = torch.zeros_like(ids_BT)
        for row, prompt in enumerate(prompts):
            ids_BT[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask_BT[row, longest - len(prompt) :] = 1
        ids_BT, mask_BT = ids_BT.to(self.device), mask_BT.to(self.device)
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        output = self.model(
            input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT, use_cache=True, logits_to_keep=1
        )
        self.cache = output.past_key_values
        self.cache.reorder_cache(owner_R)  # which takes any rows; layers with a state have no batch_select_indices
        self.mask_RT = mask_BT[owner_R]
        self.position_R = positions_BT[owner_R, -1]
        self.logits_RV = output.logits[:, -1].float()[owner_R]

    def step(self, rule: Rule) -> bool:
        """Draw one token for every row and read it; False when all rows have stopped."""
        goes_on = rule.extend(self.draws, self.logits_RV)
        keep = [row for row, on in enumerate(goes_on) if on]
        if not keep:
            return False
        if len(keep) < len(self.draws):
            keep_R = torch.tensor(keep, device=self.device)
            self.cache.reorder_cache(keep_R)
            self.mask_RT, self.position_R = self.mask_RT[keep_R], self.position_R[keep_R]
            self.draws = [self.draws[row] for row in keep]
        self._read(torch.tensor([draw.ids[-1] for draw in self.draws], device=self.device))
        return True

    def _read(self, token_R: Tensor) -> None:
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
