"""Sequoia's dynamic program against all trees there are, and the trees that drafters make of it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwing.core import DraftShape
from draftwing.drafters.growth import Growth
from draftwing.drafters.tree import shape_of
from draftwing.errors import ConfigError
from draftwing.policy.modes import FixedPolicy, parse_mode
from draftwing.policy.static_tree import Values, static_trees

Paths = frozenset[tuple[int, ...]]


@lru_cache
def all_trees(nodes: int, depth: int, width: int) -> frozenset[Paths]:
    """Every tree of so many nodes whose nodes have their parent and elder siblings in it."""
    if nodes == 0:
        return frozenset({frozenset()})
    return frozenset(
        tree | {path}
        for tree in all_trees(nodes - 1, depth, width)
        for above in [(), *tree]
        for path in [(*above, sum(len(p) == len(above) + 1 and p[:-1] == above for p in tree))]
        if len(above) < depth and path[-1] < width
    )


def expected(tree: Paths, acceptance: Values) -> float:
    return float(sum(np.prod([acceptance[d, rank] for d, rank in enumerate(path)]) for path in tree))


@st.composite
def acceptances(draw: st.DrawFn) -> Values:
    shape = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    share = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0]))  # of any order, ties among them
    return np.array([[draw(share) for _ in range(shape[1])] for _ in range(shape[0])])


@settings(max_examples=60)
@given(acceptances())
def test_no_tree_of_the_size_is_better(acceptance: Values) -> None:
    trees = static_trees(acceptance, 6)
    for nodes in range(7):
        possible = [expected(tree, acceptance) for tree in all_trees(nodes, *acceptance.shape)]
        assert trees.accepted[nodes] == pytest.approx(max(possible, default=-np.inf))
        if possible:
            shape = trees.shape(nodes)
            assert len(shape.paths) == shape.nodes == nodes
            assert expected(frozenset(shape.paths), acceptance) == pytest.approx(max(possible))
        else:
            with pytest.raises(ValueError, match="no tree of"):
                trees.shape(nodes)


def test_the_fastest_tree_weighs_tokens_against_time() -> None:
    trees = static_trees(np.array([[0.8, 0.1], [0.6, 0.1]]), 6)
    assert trees.fastest(np.ones(7)) == 6
    assert trees.fastest(np.array([1, 1.5, 3, 9, 9, 9, 9])) == 1
    assert trees.fastest(np.array([1, 9, 9, 9, 9, 9, 9])) == 0
    assert trees.shape(2).paths == ((0,), (0, 0))


@given(st.integers(1, 6), st.randoms())
def test_a_draft_has_the_nodes_that_its_shape_names(nodes: int, random: object) -> None:
    """Levels of tokens that tell their rank: what grows is the tree, cut or whole."""
    tree = random.choice(sorted(map(sorted, all_trees(nodes, 3, 3))))  # type: ignore[attr-defined]
    shape = shape_of(tree)
    for cut in (shape, shape.cut(2, 99), shape.cut(3, max(nodes - 2, 1))):
        growth = Growth(cut)
        while not growth.ended:
            rows = len(growth.frontier)
            growth.add(np.tile(np.arange(3), (rows, 1)), np.full((rows, 3), 0.5, dtype=np.float32), 3)
        draft, paths = growth.tree(), list[tuple[int, ...]]()
        for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        assert tuple(paths) == cut.paths == tuple(p for p in shape.paths if len(p) <= cut.depth)[: cut.nodes]


def test_a_mode_names_a_tree() -> None:
    policy = parse_mode("fixed:paths=0,1,0.0,0.1,0.0.0")
    assert isinstance(policy, FixedPolicy)
    assert policy.largest == DraftShape((2, 2, 1), 5, ((0,), (1,), (0, 0), (0, 1), (0, 0, 0)))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ("0.0", "the node 0.0 but not 0"),
        ("0,2", "the node 2 but not 1"),
        ("0,0.0,0.1,0.1.1", r"the node 0\.1\.1 but not 0\.1\.0"),
        (",".join(map(str, range(33))), "33 children of a node; expected at most 32"),
        ("0,,1", "expected off"),
    ],
)
def test_a_tree_that_is_none_is_refused(settings: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse_mode(f"fixed:paths={settings}")
