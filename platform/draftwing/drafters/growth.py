"""A draft that grows level by level, as arrays.

Shapes: M nodes of the newest level (its frontier), W children proposed for each, D the level's depth.
"""

from __future__ import annotations

import numpy as np

from draftwing.core import DraftShape, DraftSources, DraftTree, FloatArray, IntArray


class Growth:
    """Nodes so far, and the frontier. paths [M, D]: tokens from the root, which is excluded, to each frontier node."""

    def __init__(self) -> None:
        self._levels: list[tuple[IntArray, IntArray, FloatArray]] = []
        self._sources: list[DraftSources] = []
        self.size = 0
        self.frontier: IntArray = np.array([-1], dtype=np.int64)
        self.paths: IntArray = np.empty((1, 0), dtype=np.int64)

    @property
    def width(self) -> int:
        """Nodes of the frontier; the root stands for itself at first."""
        return len(self.frontier)

    @property
    def depth(self) -> int:
        return int(self.paths.shape[1])

    def parents(self, nodes: IntArray) -> IntArray:
        """Of nodes of the frontier, -1 the root."""
        newest = self._levels[-1][1]
        return newest[nodes - (self.size - len(newest))]

    def add(
        self,
        tokens: IntArray,
        confidences: FloatArray,
        shape: DraftShape,
        vocab_size: int,
        sources: DraftSources | None = None,
    ) -> None:
        """Give the frontier its children, best first: tokens and confidences [M, W or more].

        The shape bounds children a node and nodes in all; ids from vocab_size on are left out. sources [M rows]: with
        all levels or with none.
        """
        if sources is not None:
            self._sources.append(sources)
        width = min(shape.branching[self.depth], tokens.shape[1])
        rows, columns = np.nonzero(tokens[:, :width] < vocab_size)
        rows, columns = rows[: shape.nodes - self.size], columns[: shape.nodes - self.size]
        chosen = tokens[rows, columns]
        self._levels.append((chosen, self.frontier[rows], confidences[rows, columns].astype(np.float32, copy=False)))
        self.frontier = np.arange(self.size, self.size + len(rows))
        self.paths = np.concatenate([self.paths[rows], chosen[:, None]], axis=1)
        self.size += len(rows)

    def tree(self) -> DraftTree:
        if not self._levels:
            return DraftTree.empty()
        tokens, parents, confidences = (np.concatenate(parts) for parts in zip(*self._levels, strict=True))
        sources = None
        if self._sources:
            ids, weights = (
                np.concatenate(parts) for parts in zip(*((s.ids, s.weights) for s in self._sources), strict=True)
            )
            sources = DraftSources(ids, weights)
        return DraftTree(tokens, parents, confidences, sources)
