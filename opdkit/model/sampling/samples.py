"""Requests, samples, and the rule by which tokens are drawn. Shapes: R samples side by side, V vocabulary."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from opdkit.model.memory import TOO_LARGE


@dataclass(frozen=True)
class Request:
    """Prompt as token ids, and one CPU generator per sample of it."""

    prompt_ids: list[int]
    generators: list[torch.Generator]


@dataclass(frozen=True)
class Sample:
    """Finished sample: token ids with the stop token, and their log-probs at temperature 1 (nats).

    A sample that does not fit into memory by itself has the finish reason "memory" and no tokens.
    """

    ids: list[int]
    logprobs: list[float]
    finish_reason: str  # "stop", "length" or "memory"
    top_ids: list[list[int]] = field(default_factory=list)  # [tokens, K] most likely at each position, if requested
    top: list[list[float]] = field(default_factory=list)  # [tokens, K] their log-probs

    @property
    def text_ids(self) -> list[int]:
        """Token ids without the stop token."""
        return self.ids[:-1] if self.finish_reason == "stop" else self.ids


def find_sample_problem(sample: Sample, tokens: int) -> str | None:
    """Return why no later stage could use a sample, or None. `tokens` is the size of the tokenizer's vocabulary."""
    if sample.finish_reason == "memory":
        return TOO_LARGE
    if not all(map(math.isfinite, sample.logprobs)):
        return "log-probs are not finite"
    if max(sample.ids) >= tokens:  # models have spare output rows, beyond the tokenizer's tokens
        return "a token that the tokenizer lacks"
    return None


@dataclass(eq=False)
class Sampling:
    """Sample in progress. All random numbers are drawn up front (one per token): a restarted sample is identical."""

    uniforms: Tensor  # [max_new_tokens] float64 in [0, 1)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    top: list[list[float]] = field(default_factory=list)
    finish_reason: str | None = None  # None until it ends; see Sample


def restart(samplings: Iterable[Sampling], finish_reason: str | None = None) -> None:
    """Drop the tokens of samples. With a `finish_reason` they end without tokens; otherwise they can start again."""
    for sampling in samplings:
        sampling.ids, sampling.logprobs, sampling.finish_reason = [], [], finish_reason
        sampling.top_ids, sampling.top = [], []


@dataclass(frozen=True)
class SamplingRule:
    """Rule by which tokens are drawn and samples end. Temperature 0 is greedy."""

    temperature: float
    max_new_tokens: int
    stop_ids: frozenset[int]
    top: int  # tokens whose log-probs are kept at each position
    on_end: Callable[[int], None]  # called with the number of samples that have just ended

    def extend(self, samplings: Sequence[Sampling], logits_RV: Tensor) -> None:
        """Draw the next token of each sample from float32 logits, and set the finish reason of samples that end."""
        if self.temperature == 0:
            token_R = logits_RV.argmax(-1)
        else:
            # Inverse transform sampling, in float64 so that the order of summation hardly matters. MPS has no float64.
            probs_RV = torch.softmax(logits_RV / self.temperature, dim=-1)
            cdf_RV = (probs_RV.cpu() if probs_RV.device.type == "mps" else probs_RV).double().cumsum(-1)
            uniform_R = torch.stack([s.uniforms[len(s.ids)] for s in samplings]).to(cdf_RV.device)
            threshold_R = uniform_R * cdf_RV[:, -1]
            token_R = torch.searchsorted(cdf_RV, threshold_R[:, None], right=True)[:, 0]
            token_R = token_R.clamp(max=cdf_RV.shape[-1] - 1).to(logits_RV.device)
        logprobs_RV = torch.log_softmax(logits_RV, dim=-1)
        logprob_R = logprobs_RV.gather(-1, token_R[:, None])[:, 0]
        if self.top:
            top_RK, top_ids_RK = logprobs_RV.topk(min(self.top, logprobs_RV.shape[-1]))
            for sampling, ids, values in zip(samplings, top_ids_RK.tolist(), top_RK.tolist(), strict=True):
                sampling.top_ids.append(ids)
                sampling.top.append(values)
        for sampling, token, logprob in zip(samplings, token_R.tolist(), logprob_R.tolist(), strict=True):
            sampling.ids.append(token)
            sampling.logprobs.append(logprob)
            if token in self.stop_ids:
                sampling.finish_reason = "stop"
            elif len(sampling.ids) >= self.max_new_tokens:
                sampling.finish_reason = "length"
        if ended := sum(sampling.finish_reason is not None for sampling in samplings):
            self.on_end(ended)
