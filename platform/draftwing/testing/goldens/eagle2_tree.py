"""Kind `eagle2_tree`: growth and rerank of EAGLE-2's tree, with the draft's logits in a table.

V vocabulary, M frontier nodes, D levels.
"""

from __future__ import annotations

import numpy as np
import torch

from draftwing.core import DraftShape, DraftTree, IntArray
from draftwing.drafters.dynamic_growth import DynamicGrowth
from draftwing.drafters.tree import depths
from draftwing.testing.goldens.case import Array, Case, Verdict

ABSENT = -1


def check(case: Case) -> Verdict:
    verdict = Verdict()
    for tree in case.args["trees"]:
        name = f"t{tree['tree']}"
        table = case.tensor(f"{name}_table")
        grown = grow(table, int(tree["root_token"]), int(tree["top_k"]), int(tree["depth"]), int(tree["draft_nodes"]))
        compare_tree(case, verdict, name, int(tree["root_token"]), grown)
    return verdict


def grow(table: Array, root: int, top_k: int, depth: int, nodes: int) -> DraftTree:
    """The tree of a drafter whose logits depend on level and last token alone: table [D, V, V]."""
    growth = DynamicGrowth(DraftShape((top_k,) * (depth + 1), nodes))
    for level in range(depth + 1):
        last = growth.paths[:, -1] if level else np.array([root])
        top = torch.from_numpy(table[level][last]).softmax(-1).topk(min(top_k, table.shape[-1]), dim=-1)
        growth.add(top.indices.numpy(), top.values.numpy(), table.shape[-1])
    return growth.tree()


def compare_tree(case: Case, verdict: Verdict, name: str, root: int, tree: DraftTree) -> None:
    """A draft beside the case's arrays, which count the root as node 0."""
    parents = np.concatenate([[ABSENT], tree.parents + 1])
    above = _ancestors(parents)
    verdict.equal(f"{name} tokens", [root, *tree.tokens.tolist()], case.tensor(f"{name}_tokens"))
    verdict.equal(f"{name} parents", parents, case.tensor(f"{name}_parents"))
    verdict.equal(f"{name} positions", [0, *depths(tree.parents).tolist()], case.tensor(f"{name}_positions"))
    verdict.equal(f"{name} mask", above, case.tensor(f"{name}_mask"))
    if f"{name}_paths" in case.tensors:
        leaves = np.setdiff1d(np.arange(len(parents)), parents)
        paths = sorted(np.flatnonzero(above[leaf]).tolist() for leaf in leaves)
        stored = sorted([int(node) for node in row if node != ABSENT] for row in case.tensor(f"{name}_paths"))
        verdict.equal(f"{name} paths", [str(path) for path in paths], [str(path) for path in stored])


def _ancestors(parents: IntArray) -> IntArray:
    """[nodes, nodes]: 1 where the column is the row or above it. Parents come before children."""
    mask = np.eye(len(parents), dtype=np.int64)
    for node, parent in enumerate(parents.tolist()):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask
