"""Sampling from a model: each prompt is read once, each sample has a random stream of its own.

The judge's votes, the evaluation's replies and fresh rollouts come from here. A sample depends on its own generator and
on the model alone (but for rounding), never on the prompts that share its batch. That rules out the continuous batching
of transformers (`generate_batch`, 5.23): all its requests draw from one global stream (`torch.multinomial` without a
generator), in the order in which they happen to be scheduled. shared.py does the same with one stream per sample.

    samples.py    requests, samples, how a token is drawn
    shared.py     several samples look at one copy of their prompt's KV cache
    copied.py     each sample has a copy of it: for models whose layers do not see all tokens
    batches.py    which prompts and samples share a copy
    attention.py  attention without copies of keys and values for each query head
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from opdkit.model.sampling.copied import sample_copied
from opdkit.model.sampling.samples import Request, Sample, Sampling, SamplingRule
from opdkit.model.sampling.shared import sample_shared
from opdkit.model.tree_reading import check_tree_reading

__all__ = ["Request", "Sample", "sample"]


@torch.inference_mode()
def sample(
    model: Any,
    requests: Sequence[Request],
    *,
    temperature: float,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    batch_tokens: int,
    on_end: Callable[[int], None] = lambda count: None,
) -> list[list[Sample]]:
    """Sample from `model`: for each request one Sample per generator, in the order given. Temperature 0 is greedy.

    `batch_tokens` bounds the tokens whose keys and values are held at once, prompts and samples at their longest; a
    single sample that needs more runs alone. Where a batch does not fit into memory, it is halved, and its unfinished
    samples are restarted; a sample that does not fit alone gets the reason "memory". `on_end` is called with the number
    of samples that have just ended.
    """
    rule = SamplingRule(temperature, max_new_tokens, stop_ids, on_end)
    samplings = [[Sampling(g, max_new_tokens) for g in request.generators] for request in requests]
    prompts = [request.prompt_ids for request in requests]
    run = sample_shared if check_tree_reading(model) else sample_copied
    run(model, prompts, samplings, rule, batch_tokens)
    return [[Sample(s.ids, s.logprobs, str(s.finish_reason)) for s in group] for group in samplings]
