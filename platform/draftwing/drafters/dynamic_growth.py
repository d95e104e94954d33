"""EAGLE-2's tree: the likeliest nodes are drafted deeper, and the likeliest of all that were seen are verified.

Li, Wei, Zhang, Zhang: EAGLE-2, Faster Inference of Language Models with Dynamic Draft Trees, 2024. A node's score is
the sum of the log-confidences on its path. Each level gives every frontier node its children, all of which stay
candidates, and the best of them are the next frontier; in the end the best candidates overall become the draft. A
child scores at most as much as its parent, so parents are always among them. Above temperature 0 confidences know the
noise (`children`), and so does the tree.

Shapes: M nodes of the frontier, W children proposed for each, D the level's depth.
"""

from __future__ import annotations

import numpy as np

from draftwing.core import DraftShape, DraftSources, DraftTree, FloatArray, IntArray
from draftwing.drafters.base import BoolArray
from draftwing.drafters.growth import narrowed

NEVER = -np.inf  # the score of an id outside of the vocabulary


class DynamicGrowth:
    """As `Growth`, but the node budget bounds only what `tree` keeps, and a level's frontier is bounded instead.

    frontier [M]: candidates by index, best first. widest: most of them, None: as many as the next level's branching.
    """

    def __init__(self, shape: DraftShape, widest: int | None = None) -> None:
        self.shape = shape
        self._widest = widest
        self._tokens: IntArray = np.empty(0, dtype=np.int64)
        self._parents: IntArray = np.empty(0, dtype=np.int64)
        self._confidences: FloatArray = np.empty(0, dtype=np.float32)
        self._scores: FloatArray = np.empty(0, dtype=np.float32)
        self.frontier: IntArray = np.array([-1], dtype=np.int64)
        self.paths: IntArray = np.empty((1, 0), dtype=np.int64)
        self.above: IntArray = np.empty(0, dtype=np.int64)
        self._place: IntArray = np.array([-1], dtype=np.int64)  # of each candidate in `tree`, -1 if not in it; the root

    @property
    def ended(self) -> bool:
        return self.paths.shape[1] >= self.shape.depth or not len(self.frontier)

    def add(
        self, tokens: IntArray, confidences: FloatArray, vocab_size: int, sources: DraftSources | None = None
    ) -> None:
        if sources is not None:
            raise ValueError("a tree of the likeliest nodes can't be verified by rejection: what stays depends on them")
        depth, branching = self.paths.shape[1], self.shape.branching
        width = min(branching[depth], tokens.shape[1])
        wider = branching[min(depth + 1, len(branching) - 1)] if self._widest is None else self._widest
        new, sure = tokens[:, :width], confidences[:, :width].astype(np.float32, copy=False)
        above = self._scores[self.frontier] if depth else np.zeros(1, dtype=np.float32)
        with np.errstate(divide="ignore"):
            scores = np.where(new < vocab_size, above[:, None] + np.log(sure), NEVER).ravel()
        order = np.argsort(-scores, kind="stable")[:wider]
        best = order[scores[order] > NEVER]
        self.above = best // width
        self.paths = np.concatenate([self.paths[self.above], new.ravel()[best][:, None]], axis=1)
        parents = np.repeat(self.frontier, width)
        self.frontier = best + len(self._tokens)
        self._tokens = np.concatenate([self._tokens, new.ravel()])
        self._parents = np.concatenate([self._parents, parents])
        self._confidences = np.concatenate([self._confidences, sure.ravel()])
        self._scores = np.concatenate([self._scores, scores])

    def narrow(self, grow: BoolArray) -> None:
        """What is not in the tree now has no child there later: a child's score is no higher."""
        place = self._place[self.frontier]
        self.frontier, self.paths, self.above = narrowed(self, grow[place + 1] & ((place >= 0) | (self.frontier < 0)))

    def tree(self) -> DraftTree:
        """The best candidates within the node budget, in the order in which they were proposed."""
        best = np.argsort(-self._scores, kind="stable")[: self.shape.nodes]
        keep = np.sort(best[self._scores[best] > NEVER])
        place = np.full(len(self._tokens) + 1, -1, dtype=np.int64)
        place[keep] = np.arange(len(keep))
        self._place = place
        return DraftTree(self._tokens[keep], place[self._parents[keep]], self._confidences[keep])
