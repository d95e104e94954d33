"""The best static trees for a drafter without confidences: Sequoia's dynamic program over acceptance by depth and rank.

Chen, May, Svirschevski, Huang, Ryabinin, Jia, Chen: Sequoia, Scalable, Robust, and Hardware-aware Speculative Decoding,
2024. A node is accepted with the product of the acceptances along its path, so a verify commits on average 1 (the bonus
token) plus the sum of these over its nodes. Siblings are taken in order of rank: the classic rules test them so.

Shapes: D depths, W ranks, N nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftwing.core import DraftShape, IntArray
from draftwing.drafters.tree import shape_of

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StaticTrees:
    """The best tree of each size.

    accepted [N + 1]: draft tokens that it is expected to have accepted; -inf where there is no tree of that size. first
    [D][W][N + 1]: of that many nodes below one of that depth, its children from that rank on among them, how many
    belong to the first of these children, itself included.
    """

    accepted: Values
    first: list[list[IntArray]]

    def shape(self, nodes: int) -> DraftShape:
        """The best tree of so many nodes, as plans hold it. ValueError where there is none."""
        if not 0 <= nodes < len(self.accepted) or self.accepted[nodes] == -np.inf:
            raise ValueError(
                f"there is no tree of {nodes} nodes; the largest has {int(np.isfinite(self.accepted).sum()) - 1}"
            )
        paths: list[tuple[int, ...]] = []
        open_: list[tuple[tuple[int, ...], int, int]] = [((), 0, nodes)]
        while open_:
            above, rank, left = open_.pop()
            if not left:
                continue
            own = int(self.first[len(above)][rank][left])
            paths.append((*above, rank))
            open_ += [((*above, rank), 0, own - 1), (above, rank + 1, left - own)]
        return shape_of(paths)

    def fastest(self, cost: Values) -> int:
        """Nodes of the tree with most tokens per time. cost [N + 1]: time of a step that verifies so many, or none."""
        return int(((1 + self.accepted) / cost[: len(self.accepted)]).argmax())


def static_trees(acceptance: Values, nodes: int) -> StaticTrees:
    """acceptance [D, W]: how often a child of this rank is accepted below a node of this depth (0 the root) that is.

    nodes: of the largest tree. D bounds the depth, W the children of a node.
    """
    nothing = np.where(np.arange(nodes + 1) == 0, 0.0, -np.inf)
    below, first = nothing, []
    for shares in acceptance[::-1]:
        rest, firsts = nothing, []
        for share in shares[::-1]:
            # A child with s nodes in all, and m - s of its younger siblings': s from 1 to m, for every m.
            own = np.where(below[:-1] >= 0, share * (1 + np.maximum(below[:-1], 0)), -np.inf)
            best, taken = nothing.copy(), np.zeros(nodes + 1, dtype=np.int64)
            for m in range(1, nodes + 1):
                values = own[:m] + rest[m - 1 :: -1]
                taken[m] = 1 + values.argmax()
                best[m] = values[taken[m] - 1]
            rest = best
            firsts.append(taken)
        below = rest
        first.append(firsts[::-1])
    return StaticTrees(below, first[::-1])
