"""EAGLE-2's tree: the likeliest nodes are drafted deeper, and the likeliest of all that were seen are verified.

Li, Wei, Zhang, Zhang: EAGLE-2, Faster Inference of Language Models with Dynamic Draft Trees, 2024. A node's score is
the sum of the log-confidences on its path. Each level gives every frontier node its children, all of which stay
candidates, and the best of them are the next frontier; in the end the best candidates overall become the draft. A
child scores at most as much as its parent, so parents are always among them.

Shapes: M nodes of the frontier, W children proposed for each, D the level's depth.
"""

from __future__ import annotations

import numpy as np

from draftwing.core import DraftShape, DraftTree, FloatArray, IntArray

NEVER = -np.inf  # the score of an id outside of the vocabulary


class DynamicGrowth:
    """As `Growth`, but `branching` bounds a level's frontier too, and `nodes` only what `tree` keeps.

    frontier [M]: candidates by index, best first. paths [M, D]: tokens from the root, which is excluded, to each.
    """

    def __init__(self) -> None:
        self._tokens: IntArray = np.empty(0, dtype=np.int64)
        self._parents: IntArray = np.empty(0, dtype=np.int64)
        self._confidences: FloatArray = np.empty(0, dtype=np.float32)
        self._scores: FloatArray = np.empty(0, dtype=np.float32)
        self.frontier: IntArray = np.array([-1], dtype=np.int64)
        self.paths: IntArray = np.empty((1, 0), dtype=np.int64)

    @property
    def width(self) -> int:
        return len(self.frontier)

    @property
    def depth(self) -> int:
        return int(self.paths.shape[1])

    def parents(self, nodes: IntArray) -> IntArray:
        """Of candidates, -1 the root."""
        return self._parents[nodes]

    def add(
        self,
        tokens: IntArray,
        confidences: FloatArray,
        shape: DraftShape,
        vocab_size: int,
        frontier: int | None = None,
    ) -> None:
        """Give the frontier its children, best first: tokens and confidences [M, W or more], W the level's branching.

        confidences: probability of each given its parent. frontier: most nodes that may have children in turn; None:
        as many as the next level's branching.
        """
        width = min(shape.branching[self.depth], tokens.shape[1])
        wider = shape.branching[min(self.depth + 1, shape.depth - 1)] if frontier is None else frontier
        new, sure = tokens[:, :width], confidences[:, :width].astype(np.float32, copy=False)
        above = self._scores[self.frontier] if self.depth else np.zeros(1, dtype=np.float32)
        with np.errstate(divide="ignore"):
            scores = np.where(new < vocab_size, above[:, None] + np.log(sure), NEVER).ravel()
        order = np.argsort(-scores, kind="stable")[:wider]
        best = order[scores[order] > NEVER]
        rows = best // width
        self.paths = np.concatenate([self.paths[rows], new.ravel()[best][:, None]], axis=1)
        parents = np.repeat(self.frontier, width)
        self.frontier = best + len(self._tokens)
        self._tokens = np.concatenate([self._tokens, new.ravel()])
        self._parents = np.concatenate([self._parents, parents])
        self._confidences = np.concatenate([self._confidences, sure.ravel()])
        self._scores = np.concatenate([self._scores, scores])

    def tree(self, nodes: int) -> DraftTree:
        """The best `nodes` candidates, in the order in which they were proposed."""
        best = np.argsort(-self._scores, kind="stable")[:nodes]
        keep = np.sort(best[self._scores[best] > NEVER])
        place = np.full(len(self._tokens) + 1, -1, dtype=np.int64)
        place[keep] = np.arange(len(keep))
        return DraftTree(self._tokens[keep], place[self._parents[keep]], self._confidences[keep])
