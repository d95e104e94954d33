"""Rule R3 for drafts: whatever a drafter returned, the engine gets one sound draft per sequence.

A draft that is wrong in any way is replaced by the empty one and counted: cutting it would hide the fault, and what
breaks its plan in one place may be wrong in others. Siblings with the same token aren't a fault (merging several
sources makes them), but the verify walk would never reach the second, so it goes with all below it.

B drafts, n nodes of all drafts together.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from draftwing.core import DraftShape, DraftSources, DraftTree
from draftwing.drafters.base import BoolArray
from draftwing.drafters.tree import kept

SLACK = 1e-3  # a probability computed in 16 bits may exceed 1 by about this much


def checked(trees: object, shapes: Seq[DraftShape], vocab_size: int) -> tuple[list[DraftTree], int]:
    """One sound draft per shape, and how many were bad. Never raises.

    trees: what `propose` returned, or anything else; without exactly one entry per shape all count as bad.
    """
    if not isinstance(trees, list | tuple) or len(trees) != len(shapes):
        return [DraftTree.empty() for _ in shapes], len(shapes)
    typed = [_typed(tree, shape.nodes) for tree, shape in zip(trees, shapes, strict=True)]
    bad = typed.count(None)
    drafts = [tree if tree is not None else DraftTree.empty() for tree in typed]
    filled = [index for index, tree in enumerate(drafts) if len(tree)]
    if filled:
        faulty, doubled = _faults([drafts[i] for i in filled], [shapes[i] for i in filled], vocab_size)
        for index, wrong, twice in zip(filled, faulty.tolist(), doubled.tolist(), strict=True):
            if wrong or (twice and drafts[index].sources is not None):
                drafts[index] = DraftTree.empty()
                bad += 1
            elif twice:
                drafts[index] = without_doubles(drafts[index])
    return drafts, bad


def without_doubles(tree: DraftTree) -> DraftTree:
    """The first of each set of siblings with one token, and what hangs below those."""
    seen: set[tuple[int, int]] = set()
    alive = [False] * len(tree) + [True]  # the last entry is the root's
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
        if alive[parent] and (parent, token) not in seen:
            seen.add((parent, token))
            alive[node] = True
    return kept(tree, [node for node in range(len(tree)) if alive[node]])


def _typed(tree: object, nodes: int) -> DraftTree | None:
    """The draft as arrays of the declared types and of one length within the node budget, else None."""
    if not isinstance(tree, DraftTree):
        return None
    tokens, parents, confidences = tree.tokens, tree.parents, tree.confidences
    if not (_is_row(tokens, "iu") and _is_row(parents, "iu") and len(parents) == len(tokens) <= nodes):
        return None
    if confidences is not None:
        if not _is_row(confidences, "f") or len(confidences) != len(tokens):
            return None
        if not ((confidences >= -SLACK) & (confidences <= 1 + SLACK)).all():  # false for NaN
            return None
        confidences = confidences.astype(np.float32, copy=False)
    if tree.sources is not None and not _sound(tree.sources, len(tokens)):
        return None
    if tokens.dtype == parents.dtype == np.int64 and confidences is tree.confidences:
        return tree
    return DraftTree(tokens.astype(np.int64), parents.astype(np.int64), confidences, tree.sources)


def _sound(sources: object, nodes: int) -> bool:
    if not isinstance(sources, DraftSources):
        return False
    ids, weights = sources.ids, sources.weights
    arrays = isinstance(ids, np.ndarray) and isinstance(weights, np.ndarray)
    if not arrays or ids.ndim != 2 or ids.dtype.kind not in "iu" or weights.dtype.kind != "f":
        return False
    return ids.shape == weights.shape and len(ids) <= 1 + nodes and bool((weights >= 0).all())  # false for NaN


def _is_row(array: object, kinds: str) -> bool:
    return isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in kinds


def _faults(trees: list[DraftTree], shapes: list[DraftShape], vocab_size: int) -> tuple[BoolArray, BoolArray]:
    """Which of B non-empty drafts break their shape [B], and which have siblings with the same token [B].

    The drafts lie side by side, so that each check is one operation for the batch; a check per draft would cost more
    than the rest of a step's bookkeeping.
    """
    sizes = np.array([len(tree) for tree in trees])
    owner = np.repeat(np.arange(len(trees)), sizes)  # [n] draft of each node
    start = np.repeat(np.cumsum(sizes) - sizes, sizes)  # [n] where that draft begins
    place = np.arange(len(owner)) - start  # [n] index in that draft
    tokens = np.concatenate([tree.tokens for tree in trees])
    parents = np.concatenate([tree.parents for tree in trees])
    wrong = (tokens < 0) | (tokens >= vocab_size) | (parents < -1) | (parents >= place)

    most = np.zeros((len(shapes), 1 + max(shape.depth for shape in shapes)), dtype=np.int64)
    for row, shape in zip(most, shapes, strict=True):
        row[: shape.depth] = shape.branching
    beyond = most.shape[1] - 1  # a parent this deep may have no children in any shape
    faulty, doubled = np.zeros((2, len(trees)), dtype=np.bool_)
    if (parents == place - 1).all():  # chains alone: each node is its parent's only child, as deep as its place
        wrong |= most[owner, np.minimum(place, beyond)] < 1
    else:
        above = np.where(wrong | (parents < 0), -1, parents + start)  # [n] parent among all nodes, -1 the root
        depth = np.zeros(len(owner), dtype=np.int64)  # [n] of the parent
        ancestor = above
        for _ in range(beyond):
            alive = ancestor >= 0
            depth += alive
            ancestor = np.where(alive, above[ancestor], -1)
        family = np.where(above >= 0, above, len(owner) + owner)  # [n] the same for siblings
        wrong |= np.bincount(family)[family] > most[owner, depth]
        named = family * vocab_size + np.where(wrong, 0, tokens)
        order = np.argsort(named)
        doubled[owner[order[1:][named[order[1:]] == named[order[:-1]]]]] = True
    faulty[owner[wrong]] = True
    return faulty, doubled
