"""Requests, samples, and the rule by which a token is drawn. Shapes: R samples that grow together, V vocabulary."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Request:
    """Prompt as token ids, and one CPU generator per sample of it."""

    prompt_ids: list[int]
    generators: list[torch.Generator]


@dataclass(frozen=True)
class Sample:
    """Finished sample. `logprobs` are those of its tokens at temperature 1 (nats); the stop token is included.

    A sample that does not fit into memory by itself has the reason "memory" and no tokens.
    """

    ids: list[int]
    logprobs: list[float]
    finish_reason: str  # "stop", "length" or "memory"


class Sampling:
    """Sample while it grows. All random numbers are drawn up front (one per token): a restarted one is identical."""

    def __init__(self, generator: torch.Generator, max_new_tokens: int) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish_reason: str | None = None  # None until it ends; see Sample
        self.uniforms = torch.rand(max_new_tokens, generator=generator, dtype=torch.float64)


def restart(samplings: Iterable[Sampling], finish_reason: str | None = None) -> None:
    """Drop the tokens of samples, to grow them again, or to end them without tokens for a reason."""
    for sampling in samplings:
        sampling.ids, sampling.logprobs, sampling.finish_reason = [], [], finish_reason


@dataclass(frozen=True)
class SamplingRule:
    """Rule by which tokens are drawn and samples end. Temperature 0 is greedy."""

    temperature: float
    max_new_tokens: int
    stop_ids: frozenset[int]
    on_end: Callable[[int], None] = lambda count: None  # called with the number of samples that have just ended

    def extend(self, samplings: Sequence[Sampling], logits_RV: Tensor) -> list[bool]:
        """Draw the next token of each sample from float32 logits; return which samples continue after it."""
        if self.temperature == 0:
            token_R = logits_RV.argmax(-1)
        else:
            # Inverse transform sampling. The sum is in float64, where 150,000 terms still add up to the same total in
            # any order.
            cdf_RV = torch.softmax(logits_RV / self.temperature, dim=-1).double().cumsum(-1)
            uniform_R = torch.stack([s.uniforms[len(s.ids)] for s in samplings]).to(logits_RV.device)
            threshold_R = uniform_R * cdf_RV[:, -1]
            token_R = torch.searchsorted(cdf_RV, threshold_R[:, None], right=True)[:, 0]
            token_R = token_R.clamp(max=cdf_RV.shape[-1] - 1)
        logprob_R = torch.log_softmax(logits_RV, dim=-1).gather(-1, token_R[:, None])[:, 0]
        for sampling, token, logprob in zip(samplings, token_R.tolist(), logprob_R.tolist(), strict=True):
            sampling.ids.append(token)
            sampling.logprobs.append(logprob)
            if token in self.stop_ids:
                sampling.finish_reason = "stop"
            elif len(sampling.ids) >= self.max_new_tokens:
                sampling.finish_reason = "length"
        continues = [sampling.finish_reason is None for sampling in samplings]
        if not all(continues):
            self.on_end(continues.count(False))
        return continues
