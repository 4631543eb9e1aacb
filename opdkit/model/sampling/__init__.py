"""Sampling from a model: each prompt read once, each draw from a random stream of its own.

The judge's votes, the evaluation's replies and fresh rollouts come from here. A draw depends on its own generator and
on the model alone, never on which other prompts happened to share its batch (but for rounding). That rules out the
continuous batching of transformers (`generate_batch`, 5.23): all its requests draw from one global stream
(`torch.multinomial` without a generator), in the order in which they happen to be scheduled. shared.py
does the same with a stream a draw.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from opdkit.model.sampling.copied import draw_copied
from opdkit.model.sampling.draws import Draw, Request, Rule, Sample
from opdkit.model.sampling.shared import draw_shared
from opdkit.model.tree_reading import reads_trees

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
    """Draw from `model`: for each request one Sample per generator, in the order given. Temperature 0 is greedy.

    `batch_tokens` bounds the tokens whose keys and values are held at once, prompts and draws at their longest; a
    single draw that needs more is made alone. What does not fit into memory is halved, and drawn anew where it was
    not finished; a draw that does not fit alone is set aside (`Sample`). `on_end` is told of draws that have ended.
    """
    rule = Rule(temperature, max_new_tokens, stop_ids, on_end)
    draws = [[Draw(g, max_new_tokens) for g in request.generators] for request in requests]
    prompts = [request.prompt_ids for request in requests]
    way = draw_shared if reads_trees(model) else draw_copied
    way(model, prompts, draws, rule, batch_tokens)
    return [[rule.sample(draw) for draw in some] for some in draws]
