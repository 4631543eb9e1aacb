"""Which prompts are read together and which draws look at one copy of them. Pure arithmetic on token ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from opdkit.model.tree import in_common

# Tokens after the common prefix that are read at once; their mask has a row for each and a column for all before it.
_SUFFIXES = 1024

# Draws that run side by side: each has logits over the whole vocabulary.
MAX_DRAWS = 256

# How many times the tokens of a prompt the draws that look at one copy of it may come to. On a CPU (10 million weights)
# sharing still won at 6 times a prompt of 520 tokens, and lost by a sixth at 9 times one of 320.
_SHARED = 8


@dataclass(frozen=True)
class Group:
    """Prompts that begin alike: the first `prefix` tokens of each are the same, and are read once."""

    prefix: int
    prompts: tuple[int, ...]
    tokens: int  # prefix and all suffixes


@dataclass(frozen=True)
class Share:
    """Draws, as (prompt, its how-manieth draw), that look at one copy of a group's keys and values."""

    group: Group
    draws: tuple[tuple[int, int], ...]
    slots: int  # tokens held at the longest: the group's and those of the draws


@dataclass(frozen=True)
class Lot:
    """Shares of similar size. `rows` of them run side by side, the next takes the place of one that has ended."""

    shares: tuple[Share, ...]
    rows: int

    @property
    def slots(self) -> int:
        """Of the largest share."""
        return max(share.slots for share in self.shares)

    @property
    def draws(self) -> int:
        """Of the share that has most."""
        return max(len(share.draws) for share in self.shares)


def lots(prompts: Sequence[list[int]], draws: Sequence[int], max_new_tokens: int, batch_tokens: int) -> Iterator[Lot]:
    """How to make so many `draws` of each prompt with at most `batch_tokens` tokens held (but one draw at least)."""
    waiting = [s for g in groups(prompts) for s in _shares(g, prompts, draws, max_new_tokens, batch_tokens)]
    waiting.sort(key=lambda share: -share.slots)
    while waiting:
        some = [share for share in waiting if 2 * share.slots > waiting[0].slots]  # what is padded stays under half
        waiting = waiting[len(some) :]
        most = max(len(share.draws) for share in some)
        rows = min(len(some), max(1, min(batch_tokens // some[0].slots, MAX_DRAWS // most)))
        yield Lot(tuple(some), rows)


def groups(prompts: Sequence[list[int]]) -> list[Group]:
    """The prompts, each in one group; together where that saves at least half of every one but the first."""
    order = sorted(range(len(prompts)), key=lambda i: prompts[i])  # those that begin alike stand together
    common = [in_common(prompts[a], prompts[b]) for a, b in pairwise(order)]
    found, some, prefix = list[Group](), order[:1], len(prompts[order[0]]) if order else 0
    for k, i in enumerate(order[1:]):
        shorter = min(prefix, common[k])
        suffixes = sum(len(prompts[j]) - shorter for j in (*some, i))
        nearer_to_next = k + 1 < len(common) and common[k + 1] > common[k]
        alike = 2 * shorter >= max(len(prompts[j]) for j in (*some, i)) and suffixes <= _SUFFIXES
        if alike and not nearer_to_next:
            some, prefix = [*some, i], shorter
        else:
            found.append(_group(prompts, some, prefix))
            some, prefix = [i], len(prompts[i])
    return [*found, _group(prompts, some, prefix)] if some else found


def _group(prompts: Sequence[list[int]], some: Sequence[int], prefix: int) -> Group:
    return Group(prefix, tuple(some), prefix + sum(len(prompts[i]) - prefix for i in some))


def _shares(
    group: Group, prompts: Sequence[list[int]], draws: Sequence[int], max_new_tokens: int, batch_tokens: int
) -> Iterator[Share]:
    """The draws of a group, as many together as have room; where not even one of each prompt has, prompts apart."""
    wanted = [(i, k) for i in group.prompts for k in range(draws[i])]
    room = (batch_tokens - group.tokens) // max_new_tokens
    if len(group.prompts) > 1 and room < len(group.prompts):
        for i in group.prompts:
            yield from _shares(_group(prompts, [i], len(prompts[i])), prompts, draws, max_new_tokens, batch_tokens)
        return
    most = max(1, min(room, lanes(group.tokens, max_new_tokens)))
    for start in range(0, len(wanted), most):
        some = tuple(wanted[start : start + most])
        yield Share(group, some, group.tokens + len(some) * max_new_tokens)


def lanes(tokens: int, max_new_tokens: int) -> int:
    """How many draws look at one copy of so many tokens.

    Each draw is compared with the tokens of the others, too, for nothing: that is the price of not copying the prompt.
    """
    return min(MAX_DRAWS, max(1, _SHARED * tokens // max_new_tokens))
