"""Forwards of an optimizer step, per process: replies with a common prefix are read together, within a token budget.

Pure functions of token ids. Every process computes the plan of all processes, so that all agree on the number of
forwards without communication.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from opdkit.model.memory import batch_by_length
from opdkit.model.scoring import PromptResponse
from opdkit.model.tree import count_common


@dataclass(frozen=True)
class Tree:
    """Replies that are read together, as indices into the step. `tokens` counts common prefixes once."""

    replies: tuple[int, ...]
    tokens: int


Forward = list[Tree]  # empty: this process only takes part in the exchange of gradients


def plan_forwards(
    sequences: Sequence[PromptResponse],
    sessions: Sequence[str],
    budget: int,
    rank: int,
    ranks: int,
    *,
    packed: bool,
    chains: bool = False,
    strict: bool = False,
) -> tuple[list[Forward], int]:
    """Return the forwards of process `rank` of `ranks`, and the tokens that all processes read, without padding.

    Reply i is `sequences[i]` of `sessions[i]`. A forward holds at most `budget` tokens; a longer reply goes alone. With
    `packed`, the replies of a session share common prefixes, and a forward is one row of trees side by side. With
    `chains`, replies that continue each other form one tree, each tree is a row, and the budget includes padding. With
    neither, each reply goes alone. `strict`: see `build_trees`. All processes have equally many forwards, since all
    must join in the last backward.
    """
    trees = group_replies(sequences, sessions, budget, packed=packed, chains=chains, strict=strict)
    budget = budget if packed or chains else 0
    sizes = [tree.tokens for tree in trees]
    group = pack_side_by_side if packed else batch_by_length
    forwards_by_rank: list[list[Forward]] = []
    for hand in deal(sizes, ranks):
        groups = group([sizes[i] for i in hand], budget)
        forwards_by_rank.append([[trees[hand[i]] for i in members] for members in groups])
    forwards = forwards_by_rank[rank]
    idle: list[Forward] = [[] for _ in range(max(map(len, forwards_by_rank)) - len(forwards))]
    return forwards + idle, sum(sizes)


def group_replies(
    sequences: Sequence[PromptResponse], sessions: Sequence[str], budget: int, *, packed: bool, chains: bool,
    strict: bool = False,
) -> list[Tree]:  # fmt: skip
    """Group replies into trees. The arguments are those of `plan_forwards`."""
    if packed:
        return build_trees(sequences, sessions, budget, strict=strict)
    if chains:
        return build_chains(sequences, sessions)
    return [Tree((i,), len(sequence)) for i, sequence in enumerate(sequences)]


def build_trees(
    sequences: Sequence[PromptResponse], sessions: Sequence[str], budget: int, *, strict: bool = False
) -> list[Tree]:
    """Group the replies of each session into trees of at most `budget` tokens, or as many as its longest reply has.

    If `strict`, only a single reply may have more than `budget` tokens. Shorter prompts come first, so that most
    sequences begin with the one before them. A sequence counts with the tokens after its common prefix with the one
    before it. It may share more with an earlier one, so `tokens` is an upper bound.
    """
    members: dict[str, list[int]] = {}
    for i in sorted(range(len(sequences)), key=lambda i: len(sequences[i].prompt_ids)):
        members.setdefault(sessions[i], []).append(i)
    trees: list[Tree] = []
    for replies in members.values():
        limit = budget if strict else max(budget, *(len(sequences[i]) for i in replies))
        ids = [sequences[i].prompt_ids + sequences[i].response_ids for i in replies]
        tree = Tree((replies[0],), len(ids[0]))
        for reply, previous, current in zip(replies[1:], ids, ids[1:], strict=False):
            new = len(current) - count_common(previous, current)
            if tree.tokens + new <= limit:
                tree = Tree((*tree.replies, reply), tree.tokens + new)
            else:
                trees.append(tree)
                tree = Tree((reply,), len(current))
        trees.append(tree)
    return trees


def build_chains(sequences: Sequence[PromptResponse], sessions: Sequence[str]) -> list[Tree]:
    """Group the replies of each session into chains, in which each sequence begins with all tokens of the one before.

    A chain has as many tokens as its last sequence, so it fits where that one does.
    """
    chains, ids = dict[str, list[list[int]]](), [s.prompt_ids + s.response_ids for s in sequences]
    for i in sorted(range(len(ids)), key=lambda i: len(ids[i])):
        known = chains.setdefault(sessions[i], [])
        continued = (c for c in reversed(known) if ids[i][: len(ids[c[-1]])] == ids[c[-1]])
        if chain := next(continued, None):
            chain.append(i)
        else:
            known.append([i])
    return [Tree(tuple(chain), len(ids[chain[-1]])) for known in chains.values() for chain in known]


def deal(lengths: Sequence[int], processes: int) -> list[list[int]]:
    """Return the item indices per process. Items go, longest first, to the process with the fewest tokens so far."""
    hands, load = [list[int]() for _ in range(processes)], [0] * processes
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        process = load.index(min(load))
        hands[process].append(i)
        load[process] += lengths[i]
    return hands


def pack_side_by_side(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return groups of indices whose lengths sum to at most `budget`; a longer item goes alone.

    First-fit decreasing: at most 11/9 of the smallest possible number of groups, plus one (Johnson 1973).
    """
    groups, room = list[list[int]](), list[int]()  # room: tokens left in each group
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fits = next((g for g, left in enumerate(room) if lengths[i] <= left), None)
        if fits is None:
            groups.append([i])
            room.append(budget - lengths[i])
        else:
            groups[fits].append(i)
            room[fits] -= lengths[i]
    return groups
