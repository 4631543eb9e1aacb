"""What is asked of a model, what comes back, and how a token is drawn. Shapes: R draws, V vocabulary."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Request:
    """A prompt and one CPU generator for each draw wanted from it."""

    prompt_ids: list[int]
    generators: list[torch.Generator]


@dataclass(frozen=True)
class Sample:
    """One draw. `logprobs` are those of the sampled tokens at temperature 1 (nats); the stop token is included.

    A draw for which there was not enough memory, alone, has the reason "memory" and no tokens.
    """

    ids: list[int]
    logprobs: list[float]
    finish_reason: str  # "stop", "length" or "memory"


class Draw:
    """One draw while it grows. All its randomness is one uniform number a token, drawn beforehand.

    So it can begin anew, and comes to the same.
    """

    def __init__(self, generator: torch.Generator, max_new_tokens: int) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.ended = self.too_large = False
        self.uniforms = torch.rand(max_new_tokens, generator=generator, dtype=torch.float64)

    def set_aside(self) -> None:
        """There is not enough memory for it."""
        self.ids, self.logprobs, self.ended, self.too_large = [], [], True, True


def begin_anew(draws: Iterable[Draw]) -> None:
    """Forget what the draws that have not ended have come to."""
    for draw in draws:
        if not draw.ended:
            draw.ids, draw.logprobs = [], []


@dataclass(frozen=True)
class Rule:
    """How tokens are drawn and when a draw ends."""

    temperature: float
    max_new_tokens: int
    stop_ids: frozenset[int]
    on_end: Callable[[int], None] = lambda count: None  # is told how many draws have ended

    def extend(self, draws: Sequence[Draw], logits_RV: Tensor) -> list[bool]:
        """Draw the next token of each draw; says which of them go on after it."""
        token_R = self._tokens(draws, logits_RV)
        picked_R = torch.log_softmax(logits_RV, dim=-1).gather(-1, token_R[:, None])[:, 0]
        for draw, token, logprob in zip(draws, token_R.tolist(), picked_R.tolist(), strict=True):
            draw.ids.append(token)
            draw.logprobs.append(logprob)
            draw.ended = token in self.stop_ids or len(draw.ids) >= self.max_new_tokens
        goes_on = [not draw.ended for draw in draws]
        if not all(goes_on):
            self.on_end(goes_on.count(False))
        return goes_on

    def _tokens(self, draws: Sequence[Draw], logits_RV: Tensor) -> Tensor:
        if self.temperature == 0:
            return logits_RV.argmax(-1)
        # Inverse transform sampling. The sum is in float64, where 150,000 terms still add up to the same total in any
        # order.
        cdf_RV = torch.softmax(logits_RV / self.temperature, dim=-1).double().cumsum(-1)
        uniform_R = torch.stack([draw.uniforms[len(draw.ids)] for draw in draws]).to(logits_RV.device)
        threshold_R = uniform_R * cdf_RV[:, -1]
        return torch.searchsorted(cdf_RV, threshold_R[:, None], right=True)[:, 0].clamp(max=cdf_RV.shape[-1] - 1)

    def sample(self, draw: Draw) -> Sample:
        """What a draw that has ended came to."""
        if draw.too_large:
            return Sample([], [], "memory")
        return Sample(draw.ids, draw.logprobs, "stop" if draw.ids[-1] in self.stop_ids else "length")
