"""Sampling from a model: many draws a prompt over one prefill, each draw from a random stream of its own.

The judge's votes, the evaluation's replies and the sample logs come from here. A draw depends on its own generator and
on the model alone, never on which other prompts happened to share its batch (but for rounding).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# Decoding holds keys and values of every draw: bound the rows that run side by side.
MAX_ROWS = 256


@dataclass(frozen=True)
class Request:
    """A prompt and one CPU generator for each draw wanted from it."""

    prompt_ids: list[int]
    generators: list[torch.Generator]


@dataclass(frozen=True)
class Sample:
    """One draw. `logprobs` are those of the sampled tokens at temperature 1 (nats); the stop token is included."""

    ids: list[int]
    logprobs: list[float]
    finish_reason: str  # "stop" or "length"


@torch.inference_mode()
def sample(
    model: Any,
    requests: Sequence[Request],
    *,
    temperature: float,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    batch_tokens: int,
) -> list[list[Sample]]:
    """Draw from `model`: for each request one Sample per generator, in the order given. Temperature 0 is greedy."""
    drawn: list[list[Sample]] = [[] for _ in requests]
    for batch in _batches(requests, batch_tokens):
        rows = _Rows(model, [requests[i] for i in batch], max_new_tokens)
        for _ in range(max_new_tokens):
            if not rows.step(temperature, stop_ids):
                break
        for row, owner in enumerate(rows.owner):
            drawn[batch[owner]].append(rows.finished(row, stop_ids))
    return drawn


def _batches(requests: Sequence[Request], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of requests that are read together: similar lengths, at most `batch_tokens` padded prompt tokens."""
    order = sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt_ids))
    batch: list[int] = []
    rows = 0
    for i in order:
        longest = len(requests[batch[0]].prompt_ids) if batch else 0
        draws = len(requests[i].generators)
        if batch and (longest * (len(batch) + 1) > batch_tokens or rows + draws > MAX_ROWS):
            yield batch
            batch, rows = [], 0
        batch.append(i)
        rows += draws
    if batch:
        yield batch


class _Rows:
    """The draws of one batch while they grow. Row r belongs to request `owner[r]`."""

    def __init__(self, model: Any, requests: Sequence[Request], max_new_tokens: int) -> None:
        self.model, self.device = model, model.device
        draws = [len(r.generators) for r in requests]
        self.owner = [i for i, n in enumerate(draws) for _ in range(n)]
        self.ids: list[list[int]] = [[] for _ in self.owner]
        self.logprobs: list[list[float]] = [[] for _ in self.owner]
        self.uniforms_RT = torch.stack([
            torch.rand(max_new_tokens, generator=g, dtype=torch.float64) for r in requests for g in r.generators
        ])  # fmt: skip
        self.active = list(range(len(self.owner)))  # rows that the cache still holds, in its order
        self._prefill(requests, torch.tensor(self.owner, device=self.device))

    def _prefill(self, requests: Sequence[Request], owner_R: torch.Tensor) -> None:
        """Read every prompt once, padded on the left, then give each draw a copy of its keys and values."""
        longest = max(len(r.prompt_ids) for r in requests)
        ids_BT = torch.zeros(len(requests), longest, dtype=torch.long)
        mask_BT = torch.zeros_like(ids_BT)
        for row, request in enumerate(requests):
            ids_BT[row, longest - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
            mask_BT[row, longest - len(request.prompt_ids) :] = 1
        ids_BT, mask_BT = ids_BT.to(self.device), mask_BT.to(self.device)
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        output = self.model(
            input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT, use_cache=True, logits_to_keep=1
        )
        self.cache = output.past_key_values
        self.cache.batch_select_indices(owner_R)
        self.mask_RT = mask_BT[owner_R]
        self.position_R = positions_BT[owner_R, -1]
        self.logits_RV = output.logits[:, -1].float()[owner_R]

    def step(self, temperature: float, stop_ids: frozenset[int]) -> bool:
        """Draw one token for every active row and read it; False when all rows have stopped."""
        time = len(self.ids[self.active[0]])
        logprobs_RV = torch.log_softmax(self.logits_RV, dim=-1)
        token_R = self._draw(temperature, time)
        picked_R = logprobs_RV.gather(-1, token_R[:, None])[:, 0]
        for row, token, logprob in zip(self.active, token_R.tolist(), picked_R.tolist(), strict=True):
            self.ids[row].append(token)
            self.logprobs[row].append(logprob)
        keep = [i for i, row in enumerate(self.active) if self.ids[row][-1] not in stop_ids]
        if not keep or time + 1 == self.uniforms_RT.shape[1]:
            return False
        if len(keep) < len(self.active):
            keep_R = torch.tensor(keep, device=self.device)
            self.cache.batch_select_indices(keep_R)
            self.mask_RT, self.position_R, token_R = self.mask_RT[keep_R], self.position_R[keep_R], token_R[keep_R]
            self.active = [self.active[i] for i in keep]
        self._read(token_R)
        return True

    def _draw(self, temperature: float, time: int) -> torch.Tensor:
        if temperature == 0:
            return self.logits_RV.argmax(-1)
        # Inverse transform sampling: the one uniform number a row and step is all the randomness there is. The sum
        # is in float64, where 150,000 terms still add up to the same total in any order.
        cdf_RV = torch.softmax(self.logits_RV / temperature, dim=-1).double().cumsum(-1)
        uniform_R = self.uniforms_RT[self.active, time].to(self.device)
        threshold_R = uniform_R * cdf_RV[:, -1]
        return torch.searchsorted(cdf_RV, threshold_R[:, None], right=True)[:, 0].clamp(max=cdf_RV.shape[-1] - 1)

    def _read(self, token_R: torch.Tensor) -> None:
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

    def finished(self, row: int, stop_ids: frozenset[int]) -> Sample:
        ids = self.ids[row]
        return Sample(ids, self.logprobs[row], "stop" if ids[-1] in stop_ids else "length")
