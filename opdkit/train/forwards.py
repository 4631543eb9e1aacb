"""How the turns of an optimizer step are read: what shares a beginning together, within a token budget, by whom.

Every process computes all of this for all processes, so that they agree on the number of forwards without a word
between them. Pure functions of token ids.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

from opdkit.model.scoring import PromptResponse, batches
from opdkit.model.tree import in_common


@dataclass(frozen=True)
class Tree:
    """Turns, as indices into the step, that are read together; `tokens` with what they have in common once."""

    turns: tuple[int, ...]
    tokens: int


Forward = list[Tree]  # an empty one is a forward that must not count


@dataclass(frozen=True)
class Reading:
    """The forwards of one process in a step, and what all processes read together."""

    forwards: list[Forward]
    tokens: int  # padding apart


def reading(
    sequences: Items[PromptResponse], sessions: Items[str], budget: int, process: int, processes: int, *, packed: bool
) -> Reading:
    """Who reads what in a step whose turn i is `sequences[i]` of `sessions[i]`.

    A forward holds at most `budget` tokens; a turn that is longer goes alone, with what it already contains. `packed`:
    the turns of a session share what they have in common, and trees stand side by side in one row. Else each turn is
    a tree of its own, and the budget counts the padding. All processes have the same number of forwards: a gradient is
    only exchanged when all of them run a backward.
    """
    trees = trees_of(sequences, sessions, budget) if packed else [Tree((i,), len(s)) for i, s in enumerate(sequences)]
    sizes = [tree.tokens for tree in trees]
    group = side_by_side if packed else batches
    hands = deal(sizes, processes)
    shares = [[[trees[hand[i]] for i in some] for some in group([sizes[i] for i in hand], budget)] for hand in hands]
    mine: list[Forward] = shares[process]
    idle: list[Forward] = [[] for _ in range(max(map(len, shares)) - len(mine))]
    return Reading(mine + idle, sum(sizes))


def trees_of(sequences: Items[PromptResponse], sessions: Items[str], budget: int) -> list[Tree]:
    """The turns of each session as trees of at most `budget` tokens, or of its longest turn's.

    The shorter prompt first, so that a turn mostly begins with the one before it. Its new tokens are counted from where
    it leaves that one: it may leave an earlier one later, so a tree may be smaller than is said here, never larger.
    """
    members: dict[str, list[int]] = {}
    for i in sorted(range(len(sequences)), key=lambda i: len(sequences[i].prompt_ids)):
        members.setdefault(sessions[i], []).append(i)
    trees: list[Tree] = []
    for turns in members.values():
        most = max(budget, *(len(sequences[i]) for i in turns))
        ids = [sequences[i].prompt_ids + sequences[i].response_ids for i in turns]
        tree = Tree((turns[0],), len(ids[0]))
        for turn, before, here in zip(turns[1:], ids, ids[1:], strict=False):
            new = len(here) - in_common(before, here)
            if tree.tokens + new <= most:
                tree = Tree((*tree.turns, turn), tree.tokens + new)
            else:
                trees.append(tree)
                tree = Tree((turn,), len(here))
        trees.append(tree)
    return trees


def deal(lengths: Items[int], processes: int) -> list[list[int]]:
    """Indices for each process: the longest first, to the process that has the fewest tokens so far."""
    hands: list[list[int]] = [[] for _ in range(processes)]
    load = [0] * processes
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        process = load.index(min(load))
        hands[process].append(i)
        load[process] += lengths[i]
    return hands


def side_by_side(lengths: Items[int], budget: int) -> list[list[int]]:
    """Indices grouped so that each group's sum stays within `budget` (a longer one goes alone), the longest first.

    First fit, decreasing: at most 11/9 of the fewest groups, and one (Johnson 1973).
    """
    groups: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fits = next((g for g, left in enumerate(room) if lengths[i] <= left), None)
        if fits is None:
            groups.append([i])
            room.append(budget - lengths[i])
        else:
            groups[fits].append(i)
            room[fits] -= lengths[i]
    return groups
