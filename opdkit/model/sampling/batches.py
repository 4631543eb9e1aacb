"""Batches of samples: which prompts are read together, and which samples share a copy of the KV cache."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from opdkit.model.tree import count_common

# Most tokens after the common prefix that are read in one pass. Their mask has a row for each of them, and a column for
# each of them and for each prefix token.
_MAX_SUFFIX_TOKENS = 1024

# Most samples that run side by side: each has logits over the whole vocabulary.
MAX_SAMPLES = 256

# Samples that share one copy of a prompt have together at most this many new tokens per prompt token. On a CPU (10
# million weights), sharing was faster at 6 (prompt of 520 tokens) and a sixth slower at 9 (320 tokens).
_MAX_NEW_PER_PROMPT_TOKEN = 8


@dataclass(frozen=True)
class PromptGroup:
    """Prompts, by index, whose first `prefix` tokens are equal and read once."""

    prefix: int
    prompts: tuple[int, ...]
    tokens: int  # the prefix and all suffixes


@dataclass(frozen=True)
class SharedPrompt:
    """Samples, as (prompt index, sample index), that share one copy of a group's KV cache."""

    group: PromptGroup
    samples: tuple[tuple[int, int], ...]
    slots: int  # tokens held: the group's and those of its samples at full length


@dataclass(frozen=True)
class Batch:
    """Shared prompts of similar size. `rows` of them run side by side; the next takes the row of one that is done."""

    shared: tuple[SharedPrompt, ...]
    rows: int
    slots: int  # of the largest shared prompt
    samples: int  # of the shared prompt with the most samples


def plan_batches(
    prompts: Sequence[list[int]], counts: Sequence[int], max_new_tokens: int, batch_tokens: int
) -> Iterator[Batch]:
    """Yield batches of `counts[i]` samples of each prompt i, with at most `batch_tokens` tokens in the KV cache.

    A single sample that needs more runs alone.
    """
    waiting = [
        shared
        for group in group_prompts(prompts)
        for shared in _share_prompts(group, prompts, counts, max_new_tokens, batch_tokens)
    ]
    waiting.sort(key=lambda shared: -shared.slots)
    while waiting:
        batch = [shared for shared in waiting if 2 * shared.slots > waiting[0].slots]  # padding stays under half
        waiting = waiting[len(batch) :]
        samples = max(len(shared.samples) for shared in batch)
        rows = min(len(batch), max(1, min(batch_tokens // batch[0].slots, MAX_SAMPLES // samples)))
        yield Batch(tuple(batch), rows, batch[0].slots, samples)


def group_prompts(prompts: Sequence[list[int]]) -> list[PromptGroup]:
    """Return groups that hold each prompt once. Prompts share a group if their prefix is at least half of each."""
    order = sorted(range(len(prompts)), key=lambda i: prompts[i])  # prompts that begin alike are neighbours
    common = [count_common(prompts[a], prompts[b]) for a, b in pairwise(order)]
    groups = list[tuple[list[int], int]]()  # members, length of their common prefix
    for k, i in enumerate(order):
        if groups:
            members, prefix = [*groups[-1][0], i], min(groups[-1][1], common[k - 1])
            half = 2 * prefix >= max(len(prompts[j]) for j in members)
            suffix_tokens = sum(len(prompts[j]) - prefix for j in members)
            nearer_to_next = k < len(common) and common[k] > common[k - 1]
            if half and suffix_tokens <= _MAX_SUFFIX_TOKENS and not nearer_to_next:
                groups[-1] = members, prefix
                continue
        groups.append(([i], len(prompts[i])))
    return [PromptGroup(n, tuple(group), n + sum(len(prompts[i]) - n for i in group)) for group, n in groups]


def _share_prompts(
    group: PromptGroup, prompts: Sequence[list[int]], counts: Sequence[int], max_new_tokens: int, batch_tokens: int
) -> Iterator[SharedPrompt]:
    """Yield the samples of a group, as many together as fit; prompt by prompt if one of each does not fit."""
    samples = [(i, k) for i in group.prompts for k in range(counts[i])]
    room = (batch_tokens - group.tokens) // max_new_tokens
    if len(group.prompts) > 1 and room < len(group.prompts):
        for i in group.prompts:
            single = PromptGroup(len(prompts[i]), (i,), len(prompts[i]))
            yield from _share_prompts(single, prompts, counts, max_new_tokens, batch_tokens)
        return
    per_copy = max(1, min(room, count_samples_per_copy(group.tokens, max_new_tokens)))
    for start in range(0, len(samples), per_copy):
        together = tuple(samples[start : start + per_copy])
        yield SharedPrompt(group, together, group.tokens + len(together) * max_new_tokens)


def count_samples_per_copy(tokens: int, max_new_tokens: int) -> int:
    """Return how many samples may share one copy of a group of prompts of `tokens` tokens.

    Sharing has a cost: attention also compares each sample with the tokens of the others, which a mask then hides.
    """
    return min(MAX_SAMPLES, max(1, _MAX_NEW_PER_PROMPT_TOKEN * tokens // max_new_tokens))
