"""Helpers on flat trees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwing.core import DraftShape, DraftTree
from draftwing.drafters.tree import children, depths, full_size, kept, merged, truncated

PARENTS = np.array([-1, 0, -1, 2, 0, 3])


def test_depths_and_children() -> None:
    assert depths(PARENTS).tolist() == [1, 2, 1, 2, 2, 3]
    assert children(PARENTS) == [[1, 4], [], [3], [5], [], [], [0, 2]]
    assert children(PARENTS)[-1] == [0, 2]
    assert depths(np.empty(0, dtype=np.int64)).tolist() == []


def test_full_size() -> None:
    assert [full_size(shape) for shape in ((), (1, 1), (3, 2, 1), (2, 2, 2))] == [0, 2, 15, 14]


def test_cutting_keeps_parents_and_confidences() -> None:
    tree = DraftTree(np.arange(6), PARENTS, np.linspace(0, 1, 6, dtype=np.float32))
    cut = truncated(tree, 4)
    assert cut.parents.tolist() == [-1, 0, -1, 2]
    assert cut.confidences is not None
    assert cut.confidences.tolist() == pytest.approx([0, 0.2, 0.4, 0.6])
    assert truncated(tree, 6) is tree
    some = kept(tree, [2, 3, 5])
    assert some.tokens.tolist() == [2, 3, 5]
    assert some.parents.tolist() == [-1, 0, 1]


def test_merging_prefers_the_first_chains() -> None:
    tree = merged([[1, 2, 3], [1, 4], [5, 2, 3], [6]], DraftShape((2, 2, 1), 99))
    assert tree.tokens.tolist() == [1, 2, 3, 4, 5, 2, 3]
    assert tree.parents.tolist() == [-1, 0, 1, 0, -1, 4, 5]


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=8),
    st.lists(st.integers(1, 3), max_size=4),
    st.integers(0, 10),
)
@settings(deadline=None)
def test_merging_stays_within_the_shape(chains: list[list[int]], branching: list[int], nodes: int) -> None:
    tree = merged(chains, DraftShape(tuple(branching), nodes))
    assert len(tree) <= nodes
    below, found = children(tree.parents), [*depths(tree.parents).tolist(), 0]
    for node, kids in enumerate(below):
        if kids:
            assert len(kids) <= branching[found[node]]
        assert len({int(tree.tokens[kid]) for kid in kids}) == len(kids)
    if nodes == 10 and branching and chains and chains[0]:
        depth = min(len(chains[0]), len(branching))
        assert tree.tokens[:depth].tolist() == chains[0][:depth]
