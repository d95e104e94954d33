"""The nodes of a batch's drafts side by side, as the acceptance model and the solver look at them.

Shapes: M nodes of all drafts, B sequences.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from draftwing.core import DraftTree, FloatArray, IntArray
from draftwing.policy.base import BoolArray
from draftwing.policy.cost import Floats

GRAIN = 1024  # confidences are rounded to so many parts, so that a logged one makes the same decision again


@dataclass(frozen=True, slots=True)
class Nodes:
    """depth [M], 1 below a root. rank [M], 0 for a first child. odds [M]. owner [M]: sequence of the batch.

    parents [M]: indexes into all M nodes, -1 below a root. starts [B + 1]: where each sequence's nodes begin.
    """

    depth: IntArray
    rank: IntArray
    odds: Floats
    owner: IntArray
    parents: IntArray
    starts: IntArray

    def __len__(self) -> int:
        return len(self.owner)


def grown_from(nodes: Nodes, levels: Seq[BoolArray]) -> Floats:
    """[h]: how many nodes, roots among them, each level of drafts grew from. levels [h][B]: see `StepResult`."""
    parents = nodes.depth[np.unique(nodes.parents[nodes.parents >= 0])]
    counts = np.bincount(parents, minlength=len(levels) + 1)[: len(levels)]
    drafts = np.array([level.sum() for level in levels], dtype=np.int64)
    return np.maximum(counts, drafts).astype(np.float64)  # a child may be no token of the vocabulary, and is left out


@lru_cache(maxsize=8)
def _places(paths: tuple[tuple[int, ...], ...]) -> IntArray:
    """[n + 2, W + 1]: of the root and each node of a static tree, the place of its child of each rank; n + 1: none."""
    place = {path: i for i, path in enumerate([(), *paths])}
    found = np.full((len(place) + 1, 2 + max(path[-1] for path in paths)), len(place))
    for path in paths:
        found[place[path[:-1]], path[-1]] = place[path]
    return found


def may_grow(nodes: Nodes, paths: tuple[tuple[int, ...], ...]) -> BoolArray:
    """[M]: whether the static tree of these paths (see `DraftShape`) has children below each node."""
    child = _places(paths)
    rank = np.minimum(nodes.rank, child.shape[1] - 1)
    at = np.zeros(len(nodes), dtype=np.int64)
    for depth in range(1, int(nodes.depth.max(initial=0)) + 1):
        here = np.flatnonzero(nodes.depth == depth)
        above = nodes.parents[here]
        at[here] = child[np.where(above < 0, 0, at[above]), rank[here]]
    return np.asarray((child[at] < len(child) - 1).any(axis=1))


def parts(confidences: FloatArray) -> Floats:
    """Of 1024."""
    return np.asarray(np.rint(confidences.astype(np.float64) * GRAIN))


def log_odds(confidences: FloatArray | None, count: int) -> Floats:
    """x of each node: finite for any confidence, and the same for all within 1/1024."""
    if confidences is None:
        return np.zeros(count)
    near = np.clip(parts(confidences), 0.5, GRAIN - 0.5)
    return np.asarray(np.log(near / (GRAIN - near)))


def ranks(parents: IntArray, owner: IntArray) -> IntArray:
    """Place of each node among its siblings. parents: -1 below a root, else an index into all M nodes."""
    groups = np.where(parents < 0, -1 - owner, parents)
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=np.iinfo(np.int64).min))
    found = np.empty(len(parents), dtype=np.int64)
    found[order] = np.arange(len(parents)) - np.repeat(starts, np.diff(starts, append=len(parents)))
    return found


def side_by_side(drafts: Seq[DraftTree]) -> Nodes:
    sizes = np.array([len(draft) for draft in drafts], dtype=np.int64)
    starts = np.zeros(len(drafts) + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    owner = np.repeat(np.arange(len(drafts)), sizes)
    filled = [draft for draft in drafts if len(draft)]
    empty = np.empty(0, dtype=np.int64)
    own = np.concatenate([draft.parents for draft in filled]) if filled else empty
    known = [np.full(len(d), 0.5) if d.confidences is None else d.confidences for d in filled]
    odds = log_odds(np.concatenate(known) if known else None, 0)
    begin = starts[owner]
    place = np.arange(len(owner)) - begin
    parents = np.where(own < 0, -1, own + begin)
    if (own == place - 1).all():  # chains
        return Nodes(place + 1, np.zeros_like(place), odds, owner, parents, starts)
    depth, above = np.ones_like(place), parents
    while (alive := above >= 0).any():
        depth += alive
        above = np.where(alive, parents[above], -1)
    return Nodes(depth, ranks(parents, owner), odds, owner, parents, starts)
