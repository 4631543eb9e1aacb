"""Token trees: sequences that begin alike, and the passes in which a causal model reads each of their tokens once.

The prompts of a session repeat each other: turn 7 begins with all that turn 6 has read, and a hinted prompt is the
student's up to the hint. Three sequences, and the tree that they make; each node is a token with its position:

    turn 2          a b c d e f                 a0-b1-c2-d3-e4-f5          trunk
    turn 1          a b c d x                       |     |
    turn 1, hinted  a b p q                         |     +--x4            branch, after a prefix of 4 tokens
                                                    +--p2-q3               branch, after a prefix of 2 tokens

15 tokens are given, 9 are read, in two passes through the model:

    pass 1, the trunk        a b c d e f        a causal sequence; its keys and values stay in the cache
    pass 2, its branches     x p q              the cache is cropped to the longest prefix that they need: a b c d

        visible_prefix       4 2 2              tokens of the cached prefix that a token sees
        subtree_end          1 3 3              the place in the pass where the subtree of a token ends

In a pass, a token sees itself and its ancestors: token j is an ancestor of token i where j < i < subtree_end[j]. The
trunk is the path from the root that has most tokens in its subtrees. Branches are read from the last to the first that
leaves the trunk, so that the cache only ever shrinks; a branch that is too large for a pass is read as a trunk itself.

Where two sequences part is taken from their ids and never from what a chat template should do: one that strips
thinking, or writes a date, parts early. Pure arithmetic on token ids; `opdkit.model.tree_reading` runs it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby


@dataclass(frozen=True)
class Pass:
    """Tokens that go through the model at once, after the first `prefix` tokens of the cache. One entry per token."""

    prefix: int
    ids: tuple[int, ...]
    positions: tuple[int, ...]  # depth in the tree, from 0
    visible_prefix: tuple[int, ...]  # how many tokens of the prefix it sees
    subtree_end: tuple[int, ...]  # index in this pass after the last token that sees it

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_chain(self) -> bool:
        """Each token sees all tokens before it, so that plain causal attention reads the pass."""
        return min(self.visible_prefix) == self.prefix and min(self.subtree_end) == len(self.ids)


@dataclass(frozen=True)
class Plan:
    """Passes over some sequences, and where in them each sequence is.

    The tokens of all passes, one pass after the other, are numbered from 0: the nodes.
    """

    passes: tuple[Pass, ...]
    paths: tuple[tuple[range, ...], ...]  # the nodes of each sequence, in its order
    tokens: int  # that are read
    saved: int  # that reading one sequence at a time would read beside these

    def nodes(self, sequence: int, start: int, stop: int) -> list[int]:
        """Return the nodes of the tokens [start, stop) of a sequence."""
        nodes, position = list[int](), 0
        for part in self.paths[sequence]:
            nodes += part[max(0, start - position) : max(0, stop - position)]
            position += len(part)
        return nodes


def plan_passes(sequences: Sequence[list[int]], pack_tokens: int) -> Plan:
    """Return passes that read each token of the tree of these sequences once. No sequence may be empty.

    Branches are read together, up to `pack_tokens` tokens per pass.
    """
    tree = _Tree(sequences)
    passes, first_node = list[Pass](), dict[int, int]()  # of each segment
    for segments in _order_passes(tree, tree.roots, pack_tokens):
        first = sum(map(len, passes))
        passes.append(_make_pass(tree, segments))
        offsets = accumulate((len(tree.segments[s].ids) for s in segments), initial=first)
        first_node |= zip(segments, offsets, strict=False)
    paths = tuple(
        tuple(range(first_node[s], first_node[s] + len(tree.segments[s].ids)) for s in tree.path_to(leaf))
        for leaf in tree.leaves
    )
    tokens = sum(map(len, passes))
    return Plan(tuple(passes), paths, tokens, sum(map(len, sequences)) - tokens)


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two sequences have in common at their beginnings."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# -- the tree -------------------------------------------------------------------------------------------------------


@dataclass
class _Segment:
    """Consecutive tokens, from position `start`, that the same sequences have in common: no fork within them."""

    ids: list[int]
    start: int
    parent: int | None
    size: int = 0  # tokens of the segment and all segments beneath it
    children: list[int] = field(default_factory=list)


class _Tree:
    """Segments of a tree, each before those beneath it, and the last segment (leaf) of each sequence."""

    def __init__(self, sequences: Sequence[list[int]]) -> None:
        self.segments: list[_Segment] = []
        self.leaves = [0] * len(sequences)
        order = sorted(range(len(sequences)), key=lambda i: sequences[i])  # those that begin alike are neighbours
        todo: list[tuple[list[int], int, int | None]]
        todo = [(group, 0, None) for group in _split(sequences, order, 0)]  # a stack: a fork per turn nests deeply
        while todo:
            group, start, parent = todo.pop()
            first, last = sequences[group[0]], sequences[group[-1]]
            end = start + common_length(first[start:], last[start:])
            segment = len(self.segments)
            self.segments.append(_Segment(first[start:end], start, parent))
            if parent is not None:
                self.segments[parent].children.append(segment)
            for i in group:
                self.leaves[i] = segment
            longer = [i for i in group if len(sequences[i]) > end]
            todo += [(rest, end, segment) for rest in _split(sequences, longer, end)]
        for node in reversed(self.segments):
            node.size = len(node.ids) + sum(self.segments[c].size for c in node.children)
        self.roots = [i for i, node in enumerate(self.segments) if node.parent is None]

    def path_to(self, segment: int) -> list[int]:
        """Return the segments from the root down to this one."""
        path = [segment]
        while (parent := self.segments[path[-1]].parent) is not None:
            path.append(parent)
        return path[::-1]

    def subtree(self, segment: int) -> list[int]:
        """Return the segment and all beneath it, depth first: each subtree is contiguous."""
        found, todo = list[int](), [segment]
        while todo:
            found.append(todo.pop())
            todo += reversed(self.segments[found[-1]].children)
        return found


def _split(sequences: Sequence[list[int]], order: list[int], depth: int) -> list[list[int]]:
    """Return sorted sequences in groups of equal token at `depth`, the last group first."""
    return [list(group) for _, group in groupby(order, key=lambda i: sequences[i][depth])][::-1]


# -- passes ---------------------------------------------------------------------------------------------------------


def _order_passes(tree: _Tree, branches: list[int], pack_tokens: int) -> Iterator[list[int]]:
    """Yield the segments of each pass, for branches that leave one trunk.

    The last branch to leave it is read first: then the rest of the trunk is needed no more, and a branch that is a
    trunk itself may take its place in the cache.
    """
    waiting, tokens = list[int](), 0
    for branch in sorted(branches, key=lambda s: -tree.segments[s].start):
        size = tree.segments[branch].size
        if waiting and tokens + size > pack_tokens:
            yield waiting
            waiting, tokens = [], 0
        if size <= pack_tokens:
            waiting, tokens = [*waiting, *tree.subtree(branch)], tokens + size
            continue
        trunk = [branch]
        while children := tree.segments[trunk[-1]].children:
            trunk.append(max(children, key=lambda c: tree.segments[c].size))
        yield trunk
        leaving = {c for s in trunk for c in tree.segments[s].children}.difference(trunk)
        yield from _order_passes(tree, sorted(leaving), pack_tokens)
    if waiting:
        yield waiting


def _make_pass(tree: _Tree, order: list[int]) -> Pass:
    """Return the pass that reads these segments in this order, each before those beneath it."""
    segments = [tree.segments[s] for s in order]
    index_of = {s: i for i, s in enumerate(order)}
    parents = [None if s.parent is None else index_of.get(s.parent) for s in segments]  # None: not in this pass
    visible, last = [s.start for s in segments], list(range(len(order)))  # `last`: the last segment beneath each
    for i, parent in enumerate(parents):
        visible[i] = visible[i] if parent is None else visible[parent]
    for i, parent in reversed(list(enumerate(parents))):
        if parent is not None:
            last[parent] = max(last[parent], last[i])
    stops = list(accumulate(len(s.ids) for s in segments))
    return Pass(
        prefix=max(visible),
        ids=tuple(i for s in segments for i in s.ids),
        positions=tuple(s.start + i for s in segments for i in range(len(s.ids))),
        visible_prefix=tuple(seen for s, seen in zip(segments, visible, strict=True) for _ in s.ids),
        subtree_end=tuple(stops[end] for s, end in zip(segments, last, strict=True) for _ in s.ids),
    )
