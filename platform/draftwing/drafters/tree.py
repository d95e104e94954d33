"""Pure helpers on draft trees.

A tree is flat: parents [n] with -1 for children of the root, parents before children, siblings in order of preference.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

import numpy as np

from draftwing.core import DraftShape, DraftTree, IntArray


def depths(parents: IntArray) -> IntArray:
    """Depth of each node of a well-formed tree: 1 for children of the root."""
    found: list[int] = []
    for parent in parents.tolist():
        found.append(1 if parent < 0 else found[parent] + 1)
    return np.array(found, dtype=np.int64)


def children(parents: IntArray) -> list[list[int]]:
    """Children of every node in order; the last entry holds those of the root, so that index -1 finds them."""
    found: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents.tolist()):
        found[parent].append(node)
    return found


def full_size(branching: Seq[int]) -> int:
    """Nodes of the largest tree with these branching factors."""
    size, level = 0, 1
    for width in branching:
        level *= width
        size += level
    return size


def shape_of(paths: Iterable[tuple[int, ...]]) -> DraftShape:
    """The shape of one static tree. ValueError unless every node's parent and elder siblings are in it too."""
    ordered = tuple(sorted(set(paths), key=lambda path: (len(path), path)))
    known = {(), *ordered}
    for path in ordered:
        for needed in (path[:-1], *((*path[:-1], path[-1] - 1) for _ in range(path[-1] > 0))):
            if needed not in known:
                raise ValueError(f"the tree has the node {_text(path)} but not {_text(needed)}")
    depth = max(map(len, ordered), default=0)
    widths = tuple(1 + max(path[d] for path in ordered if len(path) > d) for d in range(depth))
    return DraftShape(widths, len(ordered), ordered)


def _text(path: tuple[int, ...]) -> str:
    return ".".join(map(str, path))


def truncated(tree: DraftTree, nodes: int) -> DraftTree:
    """The first `nodes` nodes; parents precede children, so none is orphaned."""
    if len(tree) <= nodes:
        return tree
    confidences = tree.confidences
    return DraftTree(tree.tokens[:nodes], tree.parents[:nodes], None if confidences is None else confidences[:nodes])


def kept(tree: DraftTree, keep: Iterable[int]) -> DraftTree:
    """The subtree of the nodes in `keep` (ascending); their parents must be among them."""
    index = np.fromiter(keep, dtype=np.int64)
    renumber = np.full(len(tree) + 1, -1, dtype=np.int64)
    renumber[index] = np.arange(len(index))
    confidences = tree.confidences
    return DraftTree(
        tree.tokens[index], renumber[tree.parents[index]], None if confidences is None else confidences[index]
    )


def with_ancestors(parents: IntArray, nodes: IntArray) -> list[int]:
    """The nodes and all above them, ascending."""
    found: set[int] = set()
    for node in nodes.tolist():
        at = node
        while at >= 0 and at not in found:
            found.add(at)
            at = int(parents[at])
    return sorted(found)


def merged(chains: Iterable[Seq[int]], shape: DraftShape, origins: list[int] | None = None) -> DraftTree:
    """Chains in order of preference as one prefix tree within the shape.

    origins: gets, for each node, the index of the chain that brought it.

    A chain is followed while its tokens are nodes already or may become nodes; it ends where the branching of that
    depth or the node budget is used up, and stops being read from `chains` once the budget is.
    """
    tokens: list[int] = []
    parents: list[int] = []
    below: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    count = [0] * (shape.nodes + 1)  # children of each node; the last entry is the root's
    for number, chain in enumerate(chains):
        node = -1
        for token, width in zip(chain, shape.branching, strict=False):
            child = below.get((node, token))
            if child is None:
                if count[node] >= width or len(tokens) >= shape.nodes:
                    break
                child = below[node, token] = len(tokens)
                count[node] += 1
                tokens.append(token)
                parents.append(node)
                if origins is not None:
                    origins.append(number)
            node = child
        if len(tokens) >= shape.nodes:
            break
    return DraftTree(np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int64))
