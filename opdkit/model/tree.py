"""Token trees: sequences with common prefixes, and the passes in which a causal model reads each of their tokens once.

The prompts of a session repeat each other: turn 7 begins with everything that turn 6 read, and a hinted prompt equals
the student's up to the hint. Three sequences and their tree, in which each node is a token with its position:

    turn 2          a b c d e f                 a0-b1-c2-d3-e4-f5          trunk
    turn 1          a b c d x                       |     |
    turn 1, hinted  a b p q                         |     +--x4            branch, after a prefix of 4 tokens
                                                    +--p2-q3               branch, after a prefix of 2 tokens

Instead of 15 tokens, 9 are read, in two passes through the model:

    pass 1, the trunk        a b c d e f        a causal sequence; its keys and values stay in the cache
    pass 2, its branches     x p q              the cache is cropped to the longest prefix that they need: a b c d

        visible_prefix       4 2 2              tokens of the cached prefix that a token sees
        subtree_end          1 3 3              the place in the pass where the subtree of a token ends

In a pass, a token sees itself and its ancestors: token j is an ancestor of token i if j < i < subtree_end[j]. The trunk
is the path from the root that goes to the child with the most tokens beneath it. The branches that leave the trunk last
are read first, so that the cache is only ever cropped. A branch too large for one pass is read as a trunk.

Forks are found by comparing token ids, not by assumptions about the chat template: a template that strips thinking, or
writes a date, forks early. This module is arithmetic on token ids; `opdkit.model.tree_reading` runs the passes.
`opdkit.model.row_plan` plans passes for models that cannot read branches under a mask.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar

# Most tokens of branches in one pass. Attention compares each of them with all the others and with the prefix, although
# the mask hides most of that: many more tokens would cost time.
PACK_TOKENS = 512


@dataclass(frozen=True)
class Pass:
    """Tokens read together, after the first `prefix` tokens of the KV cache. The tuples have one entry per token."""

    prefix: int
    ids: tuple[int, ...]
    positions: tuple[int, ...]  # depth in the tree, from 0
    visible_prefix: tuple[int, ...]  # how many tokens of the prefix it sees
    subtree_end: tuple[int, ...]  # index in this pass after the last token that sees it

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_chain(self) -> bool:
        """True when each token sees all tokens before it, so that plain causal attention can read the pass."""
        return min(self.visible_prefix) == self.prefix and min(self.subtree_end) == len(self.ids)


PassT = TypeVar("PassT")


@dataclass(frozen=True)
class Plan(Generic[PassT]):
    """Passes over some sequences. A node is the index of a token in the concatenation of all passes."""

    passes: tuple[PassT, ...]
    paths: tuple[tuple[range, ...], ...]  # the nodes of each sequence, in the order of its tokens
    tokens: int  # read in all passes
    saved: int  # tokens that reading each sequence by itself would read in addition

    def nodes(self, sequence: int, start: int, stop: int) -> list[int]:
        """Return the nodes of the tokens [start, stop) of a sequence."""
        return [node for part in cut_ranges(self.paths[sequence], start, stop) for node in part]


def cut_ranges(ranges: Sequence[range], start: int, stop: int) -> tuple[range, ...]:
    """Return the slice [start, stop) of these ranges, as if concatenated."""
    kept, first = list[range](), 0
    for one in ranges:
        kept.append(one[max(0, start - first) : max(0, stop - first)])
        first += len(one)
    return tuple(one for one in kept if one)


def plan_passes(sequences: Sequence[list[int]], pack_tokens: int) -> Plan[Pass]:
    """Return a plan that reads each token of the tree of these sequences once. No sequence may be empty.

    Branches are read together, up to `pack_tokens` tokens per pass.
    """
    segments, leaves = build_segments(sequences)
    roots = [i for i, segment in enumerate(segments) if segment.parent is None]
    passes, first_node = list[Pass](), dict[int, int]()  # segment -> its first node
    for order in _order_passes(segments, roots, pack_tokens):
        first = sum(map(len, passes))
        passes.append(_make_pass(segments, order))
        first_node |= zip(order, accumulate((len(segments[i].ids) for i in order), initial=first), strict=False)
    tokens = sum(map(len, passes))
    return Plan(tuple(passes), trace_paths(segments, leaves, first_node), tokens, sum(map(len, sequences)) - tokens)


def trace_paths(
    segments: Sequence["Segment"], leaves: Sequence[int | None], first_node: Mapping[int, int]
) -> tuple[tuple[range, ...], ...]:
    """Return the nodes of each sequence, given its leaf and the first node of each segment."""
    paths = []
    for leaf in leaves:
        path, i = list[range](), leaf
        while i is not None:
            path.append(range(first_node[i], first_node[i] + len(segments[i].ids)))
            i = segments[i].parent
        paths.append(tuple(reversed(path)))
    return tuple(paths)


def count_nodes(sequences: Iterable[list[int] | bytes]) -> int:
    """Return the number of nodes in the tree of these sequences (all lists or all bytes): common prefixes count once.

    >>> count_nodes([b"Is it red?", b"Is it blue?", b"Is it red?"])
    15
    """
    ordered: list[Any] = sorted(sequences)
    return sum(map(len, ordered)) - sum(count_common(a, b) for a, b in pairwise(ordered))


def count_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # the first `low` tokens are equal; comparing slices is faster than tokens one by one
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


@dataclass
class Segment:
    """Run of tokens without a fork, at positions `start` to `end` - 1, that the same sequences have in common.

    Segments are identified by their index; segments i + 1 to `stop` - 1 are those beneath segment i.
    """

    ids: list[int]
    start: int
    end: int
    parent: int | None
    size: int = 0  # tokens of the segment and all segments beneath it
    stop: int = 0
    children: list[int] = field(default_factory=list)


def build_segments(sequences: Sequence[list[int]]) -> tuple[list[Segment], list[int | None]]:
    """Return the segments of the tree, depth first, and the index of the last segment (leaf) of each sequence."""
    segments: list[Segment] = []
    leaves: list[int | None] = [None] * len(sequences)
    order = sorted(range(len(sequences)), key=lambda i: sequences[i])  # sequences that begin alike are neighbours
    stack: list[tuple[list[int], int, int | None]] = [(order, 0, None)]  # no recursion: the tree may be very deep
    while stack:
        order, start, parent = stack.pop()
        if not order:
            continue
        token = sequences[order[0]][start]
        group = [i for i in order if sequences[i][start] == token]
        stack.append((order[len(group) :], start, parent))
        first, last = sequences[group[0]], sequences[group[-1]]
        end = start + count_common(first[start:], last[start:])
        segment = len(segments)
        segments.append(Segment(first[start:end], start, end, parent))
        if parent is not None:
            segments[parent].children.append(segment)
        for i in group:
            leaves[i] = segment
        stack.append(([i for i in group if len(sequences[i]) > end], end, segment))
    for i, node in reversed(list(enumerate(segments))):
        node.size = len(node.ids) + sum(segments[c].size for c in node.children)
        node.stop = segments[node.children[-1]].stop if node.children else i + 1
    return segments, leaves


def find_trunk(segments: Sequence[Segment], root: int) -> list[int]:
    """Return the segments on the path from `root` that always goes to the child with the most tokens beneath it."""
    trunk = [root]
    while children := segments[trunk[-1]].children:
        trunk.append(max(children, key=lambda c: segments[c].size))
    return trunk


def _order_passes(segments: list[Segment], branches: list[int], pack_tokens: int) -> Iterator[list[int]]:
    """Yield the segments of each pass, for branches that leave one trunk.

    Branches that leave the trunk last are read first. The trunk beyond a fork is then no longer needed, and a branch
    that is itself read as a trunk may take its place in the cache.
    """
    waiting, tokens = list[int](), 0
    for branch in sorted(branches, key=lambda i: -segments[i].start):
        size = segments[branch].size
        if waiting and tokens + size > pack_tokens:
            yield waiting
            waiting, tokens = [], 0
        if size <= pack_tokens:
            waiting, tokens = [*waiting, *range(branch, segments[branch].stop)], tokens + size
            continue
        trunk = find_trunk(segments, branch)
        yield trunk
        leaving = {c for i in trunk for c in segments[i].children}.difference(trunk)
        yield from _order_passes(segments, sorted(leaving), pack_tokens)
    if waiting:
        yield waiting


def _make_pass(tree: list[Segment], order: list[int]) -> Pass:
    """Return the pass that reads these segments in this order, each before those beneath it."""
    segments = [tree[i] for i in order]
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
