"""Batches of samples: prompts that are read together, and samples that share a copy. Arithmetic on token ids only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from opdkit.model.tree import common_length

# Tokens after the common prefix that are read at once; their mask has a row for each and a column for all before it.
_MAX_SUFFIX_TOKENS = 1024

# Samples that run side by side: each has logits over the whole vocabulary.
MAX_SAMPLES = 256

# How many times a prompt's tokens the new tokens of the samples that share one copy of it may come to. On a CPU (10
# million weights) sharing still won at 6 times a prompt of 520 tokens, and lost by a sixth at 9 times one of 320.
_MAX_NEW_PER_PROMPT_TOKEN = 8


@dataclass(frozen=True)
class PromptGroup:
    """Prompts, by index, whose first `prefix` tokens are the same and are read once."""

    prefix: int
    prompts: tuple[int, ...]
    tokens: int  # the prefix and all suffixes


@dataclass(frozen=True)
class SharedPrompt:
    """Samples, as (prompt index, sample index), that share one copy of a group's KV cache."""

    group: PromptGroup
    samples: tuple[tuple[int, int], ...]
    slots: int  # tokens held at the longest: the group's and those of its samples


@dataclass(frozen=True)
class Batch:
    """Shared prompts of similar size. `rows` of them run side by side; the next one takes the row of one that ended."""

    shared: tuple[SharedPrompt, ...]
    rows: int
    slots: int  # of the largest shared prompt
    samples: int  # of the shared prompt that has most


def plan_batches(
    prompts: Sequence[list[int]], counts: Sequence[int], max_new_tokens: int, batch_tokens: int
) -> Iterator[Batch]:
    """Yield batches of `counts[i]` samples of each prompt i, with at most `batch_tokens` tokens held.

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
        most = max(len(shared.samples) for shared in batch)
        rows = min(len(batch), max(1, min(batch_tokens // batch[0].slots, MAX_SAMPLES // most)))
        yield Batch(tuple(batch), rows, batch[0].slots, most)


def group_prompts(prompts: Sequence[list[int]]) -> list[PromptGroup]:
    """Return groups that hold each prompt once; prompts go together where that saves half of all but the first."""
    order = sorted(range(len(prompts)), key=lambda i: prompts[i])  # those that begin alike are neighbours
    common = [common_length(prompts[a], prompts[b]) for a, b in pairwise(order)]
    groups, members, prefix = list[PromptGroup](), order[:1], len(prompts[order[0]]) if order else 0
    for k, i in enumerate(order[1:]):
        shorter = min(prefix, common[k])
        suffix_tokens = sum(len(prompts[j]) - shorter for j in (*members, i))
        nearer_to_next = k + 1 < len(common) and common[k + 1] > common[k]
        alike = 2 * shorter >= max(len(prompts[j]) for j in (*members, i)) and suffix_tokens <= _MAX_SUFFIX_TOKENS
        if alike and not nearer_to_next:
            members, prefix = [*members, i], shorter
        else:
            groups.append(_make_group(prompts, members, prefix))
            members, prefix = [i], len(prompts[i])
    return [*groups, _make_group(prompts, members, prefix)] if members else groups


def _make_group(prompts: Sequence[list[int]], members: Sequence[int], prefix: int) -> PromptGroup:
    return PromptGroup(prefix, tuple(members), prefix + sum(len(prompts[i]) - prefix for i in members))


def _share_prompts(
    group: PromptGroup, prompts: Sequence[list[int]], counts: Sequence[int], max_new_tokens: int, batch_tokens: int
) -> Iterator[SharedPrompt]:
    """Yield the samples of a group, as many together as fit; where not one of each prompt fits, prompt by prompt."""
    samples = [(i, k) for i in group.prompts for k in range(counts[i])]
    room = (batch_tokens - group.tokens) // max_new_tokens
    if len(group.prompts) > 1 and room < len(group.prompts):
        for i in group.prompts:
            single = _make_group(prompts, [i], len(prompts[i]))
            yield from _share_prompts(single, prompts, counts, max_new_tokens, batch_tokens)
        return
    most = max(1, min(room, samples_per_copy(group.tokens, max_new_tokens)))
    for start in range(0, len(samples), most):
        together = tuple(samples[start : start + most])
        yield SharedPrompt(group, together, group.tokens + len(together) * max_new_tokens)


def samples_per_copy(tokens: int, max_new_tokens: int) -> int:
    """Return how many samples share one copy of so many prompt tokens.

    Each sample is also compared with the tokens of the others, which a mask then hides: the price of not copying.
    """
    return min(MAX_SAMPLES, max(1, _MAX_NEW_PER_PROMPT_TOKEN * tokens // max_new_tokens))
