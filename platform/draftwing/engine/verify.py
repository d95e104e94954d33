"""The walk of rule R1: which nodes of a draft the target itself would have produced.

The target's own token is known at every row. From the root, follow the child whose token equals the target's token;
stop where there is none, and emit the target's token there. The output is the target's whatever was drafted.

Shapes: N rows of all drafts laid end to end, each draft's root first.
"""

from __future__ import annotations

import numpy as np

from draftwing.core import IntArray


def accepted_rows(tokens: IntArray, parents: IntArray, targets: IntArray) -> IntArray:
    """Rows on the accepted paths, roots included, ascending: path order within each draft.

    tokens [N]; parents [N]: global row of the parent, a root's own row for roots; targets [N]: the target's token after
    each row. The committed tokens of a draft are `targets` at its accepted rows. Siblings must have distinct tokens.
    Pointer doubling: a row is accepted when it and all its ancestors match, in log2(depth) array operations.
    """
    rows = np.arange(len(tokens))
    accepted = (tokens == targets[parents]) | (parents == rows)
    above = parents
    while not (above == above[above]).all():
        accepted &= accepted[above]
        above = above[above]
    accepted &= accepted[above]
    return np.flatnonzero(accepted)
