"""Sampling from a model: each prompt is read once, and each sample has its own random stream.

Judge votes, evaluation replies and rollouts are sampled here. Apart from rounding, a sample depends only on its prompt,
its generator and the model, never on the rest of its batch. The continuous batching of transformers (`generate_batch`,
5.23) cannot do that: all requests draw from one global stream (`torch.multinomial` without a generator), in the order
in which they happen to be scheduled.

`sample_shared` keeps one copy of a prompt's KV cache for all of its samples. `sample_copied` gives each sample its own
copy, for models with layers that keep a state or attend within chunks. Each is checked once per model.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch

from opdkit.model.memory import without_gradients
from opdkit.model.sampling.batches import plan_batches
from opdkit.model.sampling.copied_cache import sample_copied
from opdkit.model.sampling.samples import Request, Sample, Sampling, SamplingRule
from opdkit.model.sampling.shared_cache import check_shared_cache, sample_shared
from opdkit.model.tree_reading import check_tree_reading, find_build_problem
from opdkit.model.windows import depends_on_length, find_windows

__all__ = ["Request", "Sample", "choose_reply_room", "count_prompt_tokens", "sample"]


def choose_reply_room(longest: int, limit: int) -> int:
    """Return how many tokens a sampled reply may have: a quarter more than the longest logged one, up to `limit`."""
    return min(limit, longest * 5 // 4 + 1)


def count_prompt_tokens(
    model: Any, prompts: Sequence[list[int]], *, samples: int, max_new_tokens: int, batch_tokens: int
) -> int:
    """Return how many prompt tokens `sample` reads for `samples` samples of each prompt, if memory suffices.

    The model needs no weights. Counts a shared prefix once per batch; for `sample_copied`, each prompt once in
    all, or once per sample if positions depend on the length.
    """
    if depends_on_length(model):
        return samples * sum(map(len, prompts))
    if find_windows(model) is None or find_build_problem(model):
        return sum(map(len, prompts))
    batches = plan_batches(prompts, [samples] * len(prompts), max_new_tokens, batch_tokens)
    return sum(group.tokens for batch in batches for group, _ in groupby(batch.shared, key=lambda one: one.group))


def sample(
    model: Any,
    requests: Sequence[Request],
    *,
    temperature: float,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    batch_tokens: int,
    top: int = 0,
    on_end: Callable[[int], None] = lambda count: None,
) -> list[list[Sample]]:
    """Return for each request one Sample per generator, in order. Temperature 0 is greedy.

    `batch_tokens` limits the tokens in the KV cache, with prompts and samples at their full length; a single sample
    that needs more runs alone. If a batch does not fit into memory, its unfinished samples are restarted in smaller
    batches; a sample that does not fit alone ends with the reason "memory". `top` is the number of most likely tokens
    whose log-probs are kept at each position. `on_end` is called with the number of samples that have just ended.
    """
    rule = SamplingRule(temperature, max_new_tokens, stop_ids, top, on_end)
    samplings = [
        [Sampling(torch.rand(max_new_tokens, generator=g, dtype=torch.float64)) for g in request.generators]
        for request in requests
    ]
    prompts = [request.prompt_ids for request in requests]
    with without_gradients(model):
        can_share = find_windows(model) is not None and check_tree_reading(model) and check_shared_cache(model)
        (sample_shared if can_share else sample_copied)(model, prompts, samplings, rule, batch_tokens)
    return [[Sample(s.ids, s.logprobs, str(s.finish_reason), s.top_ids, s.top) for s in group] for group in samplings]
