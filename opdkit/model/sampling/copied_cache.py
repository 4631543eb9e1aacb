"""Sampling with the model's own KV cache: each prompt is read once, then each sample is a row with its own copy.

For models whose layers keep a state, attend within chunks, or have windows of several sizes: samples cannot share
these. Also for models that cannot read token trees (`opdkit.model.tree_reading.check_tree_reading`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from opdkit.console import warn
from opdkit.errors import OpdkitError
from opdkit.model.load import find_cache_name
from opdkit.model.memory import find_budget, find_state
from opdkit.model.rounding import HALF_ROUNDING
from opdkit.model.sampling.batches import MAX_SAMPLES
from opdkit.model.sampling.made_up import find_sampling_problem
from opdkit.model.sampling.samples import Sampling, SamplingRule, restart
from opdkit.model.windows import depends_on_length, make_up_tokens


def sample_copied(
    model: Any, prompts: Sequence[list[int]], samplings: Sequence[list[Sampling]], rule: SamplingRule, batch_tokens: int
) -> None:
    """Sample until all samples of each prompt have ended, within `batch_tokens` unless a single sample needs more.

    Raises OpdkitError for a model that cannot be sampled from.
    """
    batch_tokens = 1 if depends_on_length(model) or not check_batches(model) else batch_tokens
    rows = [(i, sampling) for i, group in enumerate(samplings) for sampling in group]
    lengths = [len(prompts[i]) + rule.max_new_tokens for i, _ in rows]
    for attempt in find_budget(model, "sampling").batches(lengths, batch_tokens, MAX_SAMPLES):
        unfinished = [rows[k] for k in attempt.items if rows[k][1].finish_reason is None]
        restart(sampling for _, sampling in unfinished)
        with attempt:
            if unfinished:
                _sample_rows(model, prompts, unfinished, rule)
        if attempt.too_large:
            restart([rows[attempt.items[0]][1]], "memory")


def check_batches(model: Any) -> bool:
    """Check once per model that samples in a batch have the log-probs of scoring. Return the result; warn if it fails.

    Made-up prompts are sampled from: two, of which one has two samples, and then one alone. Raises OpdkitError if that
    one fails, too.
    """
    state, name = find_state(model), model.name_or_path or type(model).__name__
    if state.samples_batches is not None:
        return state.samples_batches

    def sample(prompts: Sequence[list[int]], samplings: Sequence[list[Sampling]], rule: SamplingRule) -> None:
        _sample_rows(model, prompts, [(i, one) for i, group in enumerate(samplings) for one in group], rule)

    a, b, *_ = make_up_tokens(model, 16)
    problem, _ = find_sampling_problem(model, [a, b[:9]], [2, 1], sample)
    if problem:
        alone, cause = find_sampling_problem(model, [a], [1], sample, HALF_ROUNDING)
        if alone:
            raise OpdkitError(
                f"{name} can be scored and trained, but not sampled from ({type(model).__name__}: {alone}). Pass "
                "--teacher-samples 0 to `opdkit teacher`, --validate 0 to `opdkit train`"
            ) from cause
        warn(f"{name} writes samples one by one instead of in batches: {problem}")
    state.samples_batches = not problem
    return state.samples_batches


def _sample_rows(
    model: Any, prompts: Sequence[list[int]], rows: Sequence[tuple[int, Sampling]], rule: SamplingRule
) -> None:
    """Sample rows of (prompt index, sample) side by side until all have ended.

    Shapes: B prompts, R rows, T tokens, V vocabulary. `Attempt` frees the local variables (the cache) after a failure.
    """
    samplings = [sampling for _, sampling in rows]
    cache_name = find_cache_name(model)
    order = list(dict.fromkeys(i for i, _ in rows))
    prompt_R = torch.tensor([order.index(i) for i, _ in rows], device=model.device)
    longest = max(len(prompts[i]) for i in order)
    padding = {i: longest - len(prompts[i]) for i in order}  # tokens on the left
    ids_BT = torch.tensor([[0] * padding[i] + prompts[i] for i in order], device=model.device)
    mask_BT = torch.tensor([[0] * padding[i] + [1] * len(prompts[i]) for i in order], device=model.device)
    positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
    output = model(
        input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT, use_cache=True, logits_to_keep=1
    )
    cache = output.get(cache_name)  # RWKV has none: it returns its state as tensors
    has_keys = any(isinstance(layer, CacheLayerMixin) for layer in cache.layers)
    cache.reorder_cache(prompt_R)  # can repeat rows, also in layers with a state, which lack batch_select_indices
    mask_RT, position_R = mask_BT[prompt_R], positions_BT[prompt_R, -1]
    logits_RV = output.logits[:, -1].float()[prompt_R]
    while True:
        rule.extend(samplings, logits_RV)
        keep = [row for row, sampling in enumerate(samplings) if sampling.finish_reason is None]
        if not keep:
            return
        if len(keep) < len(samplings):
            keep_R = torch.tensor(keep, device=model.device)
            cache.reorder_cache(keep_R)
            mask_RT, position_R = mask_RT[keep_R], position_R[keep_R]
            samplings = [samplings[row] for row in keep]
        token_R = torch.tensor([sampling.ids[-1] for sampling in samplings], device=model.device)
        mask_RT = torch.cat([mask_RT, torch.ones_like(mask_RT[:, :1])], dim=-1)
        position_R = position_R + 1
        output = model(
            input_ids=token_R[:, None],
            attention_mask=mask_RT if has_keys else None,  # Mamba would multiply the new token by each of its numbers
            position_ids=position_R[:, None],
            use_cache=True,
            **{cache_name: cache},
        )
        logits_RV = output.logits[:, -1].float()
