"""Sequences that begin alike as one tree, and the order in which a causal model reads every token of it once.

The prompts of a session repeat each other: turn 7 begins with all that turn 6 has read, and a hinted prompt is the
student's up to the hint. Where two sequences part is taken from their ids and never from what a template should do: one
that strips thinking, or writes a date, parts early.

Pure arithmetic on token ids; `opdkit.model.tree_reading` runs it.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import accumulate, groupby


@dataclass(frozen=True)
class Pass:
    """Tokens that go through the model at once. They follow the first `kept` tokens of what was read before.

    A token sees the first `sees` of those, and in this pass itself and its ancestors: token j is an ancestor of token
    i where j < i < `ends[j]`.
    """

    kept: int
    ids: tuple[int, ...]
    positions: tuple[int, ...]
    sees: tuple[int, ...]
    ends: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_chain(self) -> bool:
        """Whether each token sees all that comes before it, so that plain causal attention reads the pass."""
        return min(self.sees) == self.kept and min(self.ends) == len(self.ids)

    def __str__(self) -> str:
        shape = "in a row" if self.is_chain else "of branches"
        return f"{len(self)} tokens {shape} after {self.kept}"


@dataclass(frozen=True)
class Plan:
    """The passes over some sequences, and where in them each sequence is.

    The tokens of all passes, one pass after the other, are numbered from 0: the nodes.
    """

    passes: tuple[Pass, ...]
    runs: tuple[tuple[range, ...], ...]  # the nodes of each sequence, in its order

    @property
    def tokens(self) -> int:
        """Tokens read."""
        return sum(map(len, self.passes))

    @property
    def saved(self) -> int:
        """Tokens that would be read beside these, one sequence at a time."""
        return sum(len(run) for runs in self.runs for run in runs) - self.tokens

    def nodes(self, sequence: int, start: int, stop: int) -> list[int]:
        """The nodes of the tokens [start, stop) of a sequence."""
        found, position = list[int](), 0
        for run in self.runs[sequence]:
            found += run[max(0, start - position) : max(0, stop - position)]
            position += len(run)
        return found

    def __str__(self) -> str:
        lines = [f"{len(self.runs)} sequences: {self.tokens:,} tokens read, {self.saved:,} saved"]
        return "\n".join(lines + [f"  {each}" for each in self.passes])


def plan(sequences: Items[list[int]], pack: int) -> Plan:
    """How to read each token of the tree of these sequences once, no sequence being empty.

    A trunk, the way from the root that has most tokens beneath it, is read in a row and kept. The branches that leave
    it follow, the last to leave first, as many at once as are `pack` tokens together; a branch of more is a trunk.
    """
    tree = _Tree.of(sequences)
    passes, place = list[Pass](), dict[int, int]()  # the first node of each segment
    roots = [i for i, s in enumerate(tree.segments) if s.parent is None]
    for some in _order(tree, roots, pack):
        first = sum(map(len, passes))
        passes.append(_pass(tree, some))
        offsets = accumulate((len(tree.segments[s].ids) for s in some), initial=first)
        place |= zip(some, offsets, strict=False)
    runs = tuple(
        tuple(range(place[s], place[s] + len(tree.segments[s].ids)) for s in tree.way_to(leaf)) for leaf in tree.leaves
    )
    return Plan(tuple(passes), runs)


# -- the tree -------------------------------------------------------------------------------------------------------


@dataclass
class _Segment:
    """Tokens in a row, from position `start`, that the same sequences have in common; `size` with all beneath."""

    ids: list[int]
    start: int
    parent: int | None
    size: int = 0
    children: list[int] = field(default_factory=list)


@dataclass
class _Tree:
    segments: list[_Segment]  # each before what is beneath it
    leaves: list[int]  # the last segment of each sequence

    @classmethod
    def of(cls, sequences: Items[list[int]]) -> "_Tree":
        tree = cls([], [0] * len(sequences))
        order = sorted(range(len(sequences)), key=lambda i: sequences[i])  # those that begin alike stand together
        todo: list[tuple[list[int], int, int | None]]
        todo = [(some, 0, None) for some in _apart(sequences, order, 0)]  # a stack: there may be a level a turn
        while todo:
            some, start, parent = todo.pop()
            first, last = sequences[some[0]], sequences[some[-1]]
            end = start + in_common(first[start:], last[start:])
            here = tree._add(first[start:end], start, parent)
            for i in some:
                tree.leaves[i] = here
            todo += [(rest, end, here) for rest in _apart(sequences, [i for i in some if len(sequences[i]) > end], end)]
        for segment in reversed(tree.segments):
            segment.size = len(segment.ids) + sum(tree.segments[c].size for c in segment.children)
        return tree

    def _add(self, ids: list[int], start: int, parent: int | None) -> int:
        self.segments.append(_Segment(ids, start, parent))
        if parent is not None:
            self.segments[parent].children.append(len(self.segments) - 1)
        return len(self.segments) - 1

    def way_to(self, segment: int) -> list[int]:
        """From the root down."""
        way, at = list[int](), self.segments[segment]
        while at.parent is not None:
            way.append(segment)
            segment, at = at.parent, self.segments[at.parent]
        return [segment, *reversed(way)]

    def beneath(self, segment: int) -> list[int]:
        """The segment and all beneath it, each before what is beneath it and apart from its siblings'."""
        found, todo = list[int](), [segment]
        while todo:
            found.append(todo.pop())
            todo += reversed(self.segments[found[-1]].children)
        return found

    def trunk(self, segment: int) -> list[int]:
        """The way down from a segment that has most tokens beneath it."""
        way = [segment]
        while children := self.segments[way[-1]].children:
            way.append(max(children, key=lambda c: self.segments[c].size))
        return way


def _apart(sequences: Items[list[int]], order: list[int], depth: int) -> list[list[int]]:
    """Sorted sequences by their token at `depth`, the last group first."""
    return [list(some) for _, some in groupby(order, key=lambda i: sequences[i][depth])][::-1]


def in_common(a: Items[int], b: Items[int]) -> int:
    """How many tokens two sequences begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# -- the order of reading -------------------------------------------------------------------------------------------


def _order(tree: _Tree, branches: list[int], pack: int) -> Iterator[list[int]]:
    """The segments of each pass, for branches that leave one trunk.

    The last to leave it are read first: then the rest of the trunk is needed no more, and a branch that is a trunk
    itself may take its place.
    """
    waiting, tokens = list[int](), 0
    for branch in sorted(branches, key=lambda s: -tree.segments[s].start):
        size = tree.segments[branch].size
        if waiting and tokens + size > pack:
            yield _all_beneath(tree, waiting)
            waiting, tokens = [], 0
        if size <= pack:
            waiting, tokens = [*waiting, branch], tokens + size
            continue
        trunk = tree.trunk(branch)
        yield trunk
        leaving = {c for s in trunk for c in tree.segments[s].children}.difference(trunk)
        yield from _order(tree, sorted(leaving), pack)
    if waiting:
        yield _all_beneath(tree, waiting)


def _all_beneath(tree: _Tree, branches: list[int]) -> list[int]:
    return [s for branch in branches for s in tree.beneath(branch)]


def _pass(tree: _Tree, some: list[int]) -> Pass:
    """Segments, each before what is beneath it, as tokens."""
    segments = [tree.segments[s] for s in some]
    at = {s: i for i, s in enumerate(some)}
    parents = [None if s.parent is None else at.get(s.parent) for s in segments]  # in this pass
    sees, last = [s.start for s in segments], list(range(len(some)))  # `last`: the last one beneath each
    for i, parent in enumerate(parents):
        sees[i] = sees[i] if parent is None else sees[parent]
    for i, parent in reversed(list(enumerate(parents))):
        if parent is not None:
            last[parent] = max(last[parent], last[i])
    stops = list(accumulate(len(s.ids) for s in segments))
    return Pass(
        kept=max(sees),
        ids=tuple(i for s in segments for i in s.ids),
        positions=tuple(s.start + i for s in segments for i in range(len(s.ids))),
        sees=tuple(seen for s, seen in zip(segments, sees, strict=True) for _ in s.ids),
        ends=tuple(stops[end] for s, end in zip(segments, last, strict=True) for _ in s.ids),
    )
