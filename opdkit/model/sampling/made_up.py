"""Check a way to sample: samples of made-up prompts must have the log-probs of scoring."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from opdkit.model.memory import is_out_of_memory
from opdkit.model.rounding import HALF_ROUNDING, ROUNDING, find_compute_dtype, measure_differences
from opdkit.model.sampling.samples import Sampling, SamplingRule
from opdkit.model.scoring import PromptResponse, score

# Largest mean difference in float32, in nats. Some models round more where they write token by token than where they
# read: Nemotron-H by 0.001, Zamba 2 by up to 0.1. What padding changes wrongly may be as little as 0.04.
_ROUNDING = 0.02
_GREEDY = SamplingRule(0.0, 8, frozenset(), 0, lambda count: None)


def find_sampling_problem(
    model: Any,
    prompts: Sequence[list[int]],
    counts: Sequence[int],
    sample: Callable[[Sequence[list[int]], Sequence[list[Sampling]], SamplingRule], None],
    limit: float | None = None,
) -> tuple[str, Exception | None]:
    """Let `sample` write `counts[i]` samples of each prompt i. Return what is wrong, "" if nothing is, and its cause.

    The mean difference of each sample from its scores may be `limit` nats; by default what the dtype rounds.
    """
    if limit is None:
        limit = _ROUNDING if find_compute_dtype(model) in ROUNDING else HALF_ROUNDING
    samplings = [[Sampling(torch.zeros(0)) for _ in range(count)] for count in counts]
    rows = [(prompt, one) for prompt, group in zip(prompts, samplings, strict=True) for one in group]
    try:
        sample(prompts, samplings, _GREEDY)
        expected = score(model, [PromptResponse(prompt, one.ids) for prompt, one in rows], batch_tokens=1)
    except Exception as error:  # models may raise anything for a cache that they do not support
        if is_out_of_memory(error):
            raise
        return f"its cache cannot be used ({type(error).__name__})", error
    pairs = zip(rows, expected, strict=True)
    means = [float(measure_differences(torch.tensor(one.logprobs), scores).mean()) for (_, one), scores in pairs]
    wrong = max((mean for mean in means if mean > limit), default=None)
    return ("" if wrong is None else f"otherwise its log-probs would differ by {wrong:.1g} nats"), None
