"""Drafts that grow level by level, as arrays: all nodes of a full tree, or (`DynamicGrowth`) the likeliest ones.

Shapes: B drafts that grow together, M nodes of the newest level (a draft's frontier), W children proposed for each, D
the level's depth.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Protocol, TypeVar

import numpy as np

from draftwing.core import DraftShape, DraftSources, DraftTree, FloatArray, IntArray
from draftwing.drafters.base import BoolArray, Controller
from draftwing.drafters.children import Children
from draftwing.engine.processors import SampleRows, SamplerState


class Growing(Protocol):
    """A draft within a shape. frontier [M]: nodes that get children next, -1 the root at first.

    paths [M, D]: tokens from the root, which is excluded, to each frontier node. above [M]: place of each one's parent
    in the frontier before.
    """

    frontier: IntArray
    paths: IntArray
    above: IntArray

    @property
    def shape(self) -> DraftShape: ...
    @property
    def ended(self) -> bool:
        """Whether nothing may be added any more."""
        ...

    def add(
        self, tokens: IntArray, confidences: FloatArray, vocab_size: int, sources: DraftSources | None = None
    ) -> None:
        """Give the frontier its children, best first: tokens and confidences [M, W or more].

        confidences: 0 to 1, of each given its parent. Ids from vocab_size on are left out. sources [M rows]: with
        all levels or with none.
        """
        ...

    def narrow(self, grow: BoolArray) -> None:
        """Only those of the frontier get children. grow [1 + n]: of the root and the nodes of the last `tree`."""
        ...

    def tree(self) -> DraftTree: ...


class Growth:
    """Every child that the shape allows, in the order of levels until the node budget is used up.

    Where the shape names its nodes, only those. Nodes at the end of a level that get no children are not its frontier.
    """

    def __init__(self, shape: DraftShape) -> None:
        self.shape = shape
        self.size = 0
        self.frontier: IntArray = np.array([-1], dtype=np.int64)
        self.paths: IntArray = np.empty((1, 0), dtype=np.int64)
        self.above: IntArray = np.empty(0, dtype=np.int64)
        self._tokens: IntArray = np.empty(shape.nodes, dtype=np.int64)
        self._parents: IntArray = np.empty(shape.nodes, dtype=np.int64)
        self._confidences: FloatArray = np.empty(shape.nodes, dtype=np.float32)
        self._sources: list[tuple[IntArray, DraftSources]] = []  # with the nodes whose children they are
        self._ranks: list[tuple[int, ...]] = [()]  # of the frontier, where the shape names its nodes

    @property
    def ended(self) -> bool:
        depth = self.paths.shape[1]
        return self.size >= self.shape.nodes or depth >= self.shape.depth or not len(self.frontier)

    def add(
        self, tokens: IntArray, confidences: FloatArray, vocab_size: int, sources: DraftSources | None = None
    ) -> None:
        if sources is not None:
            self._sources.append((self.frontier, sources))
        width = min(self.shape.branching[self.paths.shape[1]], tokens.shape[1])
        wanted = tokens[:, :width] < vocab_size
        if named := self.shape.paths:
            wanted &= np.array([[(*ranks, rank) in named for rank in range(width)] for ranks in self._ranks])
        rows, columns = np.nonzero(wanted)
        room = self.shape.nodes - self.size
        rows, columns = rows[:room], columns[:room]
        new = slice(self.size, self.size + len(rows))
        self._tokens[new] = chosen = tokens[rows, columns]
        self._parents[new] = self.frontier[rows]
        self._confidences[new] = confidences[rows, columns]
        if self.shape.paths:
            self._ranks = [(*self._ranks[row], rank) for row, rank in zip(rows.tolist(), columns.tolist(), strict=True)]
        self.paths = np.concatenate([self.paths[rows], chosen[:, None]], axis=1)
        self.frontier, self.size = np.arange(new.start, new.stop), new.stop
        parents = self._parents_to_be()
        self.frontier, self.paths, self.above = self.frontier[:parents], self.paths[:parents], rows[:parents]
        self._ranks = self._ranks[:parents]

    def narrow(self, grow: BoolArray) -> None:
        chosen = grow[self.frontier + 1]
        if not chosen.all():
            self._ranks = list(itertools.compress(self._ranks, chosen.tolist()))
            self.frontier, self.paths, self.above = narrowed(self, chosen)

    def _parents_to_be(self) -> int:
        """How many nodes of the newest level have room for children."""
        depth = self.paths.shape[1]
        if depth >= self.shape.depth:
            return 0
        if self.shape.paths:
            above = {path[:-1] for path in self.shape.paths if len(path) == depth + 1}
            return max((row + 1 for row, ranks in enumerate(self._ranks) if ranks in above), default=0)
        return -(-(self.shape.nodes - self.size) // self.shape.branching[depth])

    def tree(self) -> DraftTree:
        if not self.paths.shape[1]:
            return DraftTree.empty()
        tokens, parents, confidences = (
            self._tokens[: self.size],
            self._parents[: self.size],
            self._confidences[: self.size],
        )
        return DraftTree(tokens, parents, confidences, self._drawn_from() if self._sources else None)

    def _drawn_from(self) -> DraftSources:
        """By node; one without children has the root's."""
        nodes = np.concatenate([nodes for nodes, _ in self._sources])
        place = np.zeros(int(nodes.max()) + 2, dtype=np.int64)
        place[nodes + 1] = np.arange(len(nodes))
        ids, weights = (
            np.concatenate(part) for part in zip(*((s.ids, s.weights) for _, s in self._sources), strict=True)
        )
        return DraftSources(ids[place], weights[place])


class Drafted(Protocol):
    """What a drafter keeps of a draft while it grows. last: it grows no more."""

    last: bool

    @property
    def growth(self) -> Growing: ...


Draft = TypeVar("Draft", bound=Drafted)


def level_by_level(
    drafts: Seq[Draft | None], controller: Controller, grow: Callable[[list[Draft], int], None]
) -> list[DraftTree]:
    """The trees [B] that the controller lets grow. grow: gives the frontiers of some drafts, all at one depth, their
    children, and says whose level was the last."""
    depth = 0
    while True:
        trees = [DraftTree.empty() if draft is None else draft.growth.tree() for draft in drafts]
        if all(draft is None or draft.last for draft in drafts):
            return trees
        level = []
        for draft, chosen in zip(drafts, controller.deeper(depth, trees), strict=True):
            if draft is not None and not draft.last:
                draft.growth.narrow(chosen)
                draft.last = not len(draft.growth.frontier)
                level += [] if draft.last else [draft]
        if level:
            grow(level, depth)
        depth += 1


def narrowed(growth: Growing, chosen: BoolArray) -> tuple[IntArray, IntArray, IntArray]:
    """frontier, paths and above of the chosen nodes. chosen [M]."""
    above = growth.above[chosen] if len(growth.above) else growth.above  # the root has none
    return growth.frontier[chosen], growth.paths[chosen], above


def owners(growths: Seq[Growing]) -> IntArray:
    """Which draft each frontier node of a level is of; the nodes stand draft by draft."""
    return np.repeat(np.arange(len(growths)), [len(growth.frontier) for growth in growths])


def level_rows(growths: Seq[Growing], samplers: list[SamplerState], lengths: Seq[int]) -> SampleRows:
    """How the children of a level's frontiers are chosen. lengths [B]: tokens up to each root; all are as deep."""
    owner = owners(growths)
    depth = growths[0].paths.shape[1]
    return SampleRows(
        sequences=samplers,
        seq_of_row=owner,
        positions=np.array(lengths, dtype=np.int64)[owner] + depth,
        path_rows=np.repeat(np.arange(len(owner)), depth),
        path_tokens=np.concatenate([growth.paths.ravel() for growth in growths]),
    )


def most_children(growths: Seq[Growing]) -> int:
    """The widest branching of a level."""
    return max(growth.shape.branching[growth.paths.shape[1]] for growth in growths)


def share(growths: Seq[Growing], found: Children, vocab_size: int) -> None:
    """Give each draft its part of a level's children, which stand for all frontiers in order."""
    start = 0
    for growth in growths:
        part = slice(start, start + len(growth.frontier))
        own = found.sources and DraftSources(found.sources.ids[part], found.sources.weights[part])
        growth.add(found.tokens[part], found.confidences[part], vocab_size, own)
        start = part.stop
