"""Passes over token trees for models that keep a state: rows that continue from the cache of a shorter path.

A layer that keeps a state in place of keys (linear attention, state-space, convolution) cannot hide tokens with a mask.
So a branch starts from a copy of the state at its fork. The tree of `opdkit.model.tree`, in three passes:

    pass 0    a b                   starts with an empty cache
    pass 1    c d                   continues from pass 0
    pass 2    e f | x | p q         rows side by side, which continue from passes 1, 1 and 0

The trunk is cut at its forks. Branches without forks, and the end of the trunk, become rows, which wait until they fill
a pass. A branch that itself forks is read as a trunk. No row continues from a pass of several rows, so padding at the
end of a row never enters a state.

A few tokens are read more than once if that saves passes: see `_MOST_READ_AGAIN`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from opdkit.model.tree import Plan, Segment, build_segments, find_trunk, trace_paths

# Share of tokens that may be read again to avoid cutting the trunk at a fork or reading a branch as a trunk. For
# example, hints that begin alike fork after a few tokens.
_MOST_READ_AGAIN = 0.05

# Share of the tokens of a pass that may be padding.
_MOST_PADDING = 0.05

# Most keys of all rows of a pass, per token of a full pass: each row has its own copy of the keys and of a state.
_MOST_KEYS = 32


@dataclass(frozen=True)
class Rows:
    """Rows of token ids that go through the model side by side. Row r begins at position `starts[r]`.

    It continues from the cache of pass `after[r]`, which read the token before that position; -1: from an empty cache.
    """

    ids: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    after: tuple[int, ...]

    def __len__(self) -> int:
        return sum(map(len, self.ids))


def plan_rows(sequences: Sequence[list[int]], pack_tokens: int, *, one_fork: bool = False) -> Plan[Rows]:
    """Return passes that read the tree of these sequences. No sequence may be empty.

    A pass holds rows of up to `pack_tokens` tokens; with `one_fork`, only rows that continue from the same pass.
    """
    segments, leaves = build_segments(sequences)
    planner = _Planner(segments, pack_tokens, one_fork)
    for root in (i for i, segment in enumerate(segments) if segment.parent is None):
        planner.add(root, 0, -1)
    planner.plan_waiting()
    paths = trace_paths(segments, leaves, planner.first_node)
    return Plan(tuple(planner.passes), paths, planner.tokens, sum(map(len, sequences)) - planner.tokens)


@dataclass(frozen=True)
class _Row:
    """Path to segment `leaf` from position `start` on, continuing from pass `after`; `length` in tokens."""

    leaf: int
    start: int
    after: int
    length: int


@dataclass
class _Planner:
    """Passes planned so far, and the rows that wait for a pass."""

    segments: Sequence[Segment]
    pack_tokens: int
    one_fork: bool
    passes: list[Rows] = field(default_factory=list)
    tokens: int = 0  # in all passes
    first_node: dict[int, int] = field(default_factory=dict)  # of each segment that has been read
    waiting: list[_Row] = field(default_factory=list)

    def add(self, branch: int, start: int, after: int) -> None:
        """Plan the subtree of a branch: as rows if that reads few tokens again, else as a trunk with branches."""
        leaves = self._find_leaves(branch)
        if len(leaves) > 1 and not self._is_cheap(branch, start):
            self._plan_trunk(branch, start, after)
            return
        for leaf in leaves:
            waiting = [*self.waiting, _Row(leaf, start, after, self.segments[leaf].end - start)]
            keys = len(waiting) * max(r.start + r.length for r in waiting)
            if sum(r.length for r in waiting) > self.pack_tokens or keys > _MOST_KEYS * self.pack_tokens:
                self.plan_waiting()
            self.waiting.append(waiting[-1])

    def _plan_trunk(self, root: int, start: int, after: int) -> None:
        """Plan a trunk, cut at its forks, and the branches that leave it."""
        outer, self.waiting = self.waiting, []
        trunk = find_trunk(self.segments, root)
        for segment, following in pairwise(trunk):
            fork = self.segments[segment].end
            branches = [c for c in self.segments[segment].children if c != following]
            # Never cut off a single token: some models read it with another formula, which rounds more.
            if fork - start > 1 and not all(self._is_cheap(c, start) for c in branches):
                after = self._plan_pass([_Row(segment, start, after, fork - start)])
                start = fork
            for branch in branches:
                self.add(branch, start, after)
        self.add(trunk[-1], start, after)
        self.plan_waiting()
        self.waiting = outer

    def _find_leaves(self, branch: int) -> list[int]:
        """Return the leaf segments in the subtree of a branch."""
        return [i for i in range(branch, self.segments[branch].stop) if not self.segments[i].children]

    def _is_cheap(self, branch: int, start: int) -> bool:
        """Return whether all paths from `start` to the leaves of a branch add up to few more tokens than the branch."""
        read = sum(self.segments[leaf].end - start for leaf in self._find_leaves(branch))
        return read <= (1 + _MOST_READ_AGAIN) * self.segments[branch].size

    def plan_waiting(self) -> None:
        """Plan passes for the waiting rows, with rows of similar length together."""
        rows: list[_Row] = []
        fork = {r: r.after if self.one_fork else r.after >= 0 for r in self.waiting}  # the same for all rows of a pass
        for row in sorted(self.waiting, key=lambda r: (fork[r], -r.length)):
            together = [*rows, row]
            padded, read = len(together) * together[0].length, sum(r.length for r in together)
            fits = padded <= min(self.pack_tokens, (1 + _MOST_PADDING) * read) and fork[row] == fork[together[0]]
            if rows and not fits:
                self._plan_pass(rows)
            rows = together if fits or not rows else [row]
        if rows:
            self._plan_pass(rows)
        self.waiting = []

    def _plan_pass(self, rows: Sequence[_Row]) -> int:
        """Plan a pass over these rows. Return its index."""
        ids = list[tuple[int, ...]]()
        for row in rows:
            path, segment = list[int](), self.segments[row.leaf]
            self.first_node.setdefault(row.leaf, self.tokens + segment.start - row.start)
            while segment.start > row.start and segment.parent is not None:
                path, parent = segment.ids + path, segment.parent
                segment = self.segments[parent]
                self.first_node.setdefault(parent, self.tokens + segment.start - row.start)
            ids.append(tuple(segment.ids + path))
            self.tokens += row.length
        self.passes.append(Rows(tuple(ids), tuple(r.start for r in rows), tuple(r.after for r in rows)))
        return len(self.passes) - 1
