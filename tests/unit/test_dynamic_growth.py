"""EAGLE-2's tree: the best candidates are verified, and ids outside of the vocabulary never."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from draftwing.core import DraftShape
from draftwing.drafters.dynamic_growth import DynamicGrowth
from draftwing.drafters.tree import depths


@given(top_k=st.integers(1, 5), depth=st.integers(1, 4), nodes=st.integers(0, 40), seed=st.integers(0, 999))
def test_no_candidate_left_out_is_better(top_k: int, depth: int, nodes: int, seed: int) -> None:
    draw, shape, vocab = np.random.default_rng(seed), DraftShape((top_k,) * depth, nodes), 12
    growth, everything, candidates = DynamicGrowth(shape), DynamicGrowth(DraftShape(shape.branching, 10_000)), 0
    for level in range(depth):
        assert growth.paths.shape[1] == level
        tokens = np.array([draw.permutation(vocab + 1)[:top_k] for _ in range(len(growth.frontier))])
        sure = -np.sort(-draw.random(tokens.shape).astype(np.float32), axis=1)
        growth.add(tokens, sure, vocab)
        everything.add(tokens, sure, vocab)
        candidates += int((tokens < vocab).sum())
        assert len(growth.frontier) <= top_k
        if not len(growth.frontier):
            break
    everyone, tree = everything.tree(), growth.tree()
    assert len(everyone) == candidates
    assert len(tree) == min(nodes, candidates)
    assert (tree.parents < np.arange(len(tree))).all()
    assert len(tree) == 0 or depths(tree.parents).max() <= depth
    assert (everyone.tokens < vocab).all()

    def scores(of: object) -> list[float]:
        found: list[float] = []
        for parent, sure in zip(of.parents, of.confidences, strict=True):  # type: ignore[attr-defined]
            found.append(float(np.log(sure)) + (found[parent] if parent >= 0 else 0.0))
        return found

    best = sorted(scores(everyone), reverse=True)[: len(tree)]
    np.testing.assert_allclose(sorted(scores(tree), reverse=True), best, rtol=1e-5)


def test_the_frontier_is_the_best_of_all_children() -> None:
    growth = DynamicGrowth(DraftShape((2, 2, 2), 5))
    growth.add(np.array([[4, 5]]), np.array([[0.6, 0.3]]), 10)
    growth.add(np.array([[1, 2], [3, 6]]), np.array([[0.5, 0.4], [0.9, 0.05]]), 10)
    # 0.6 * 0.5 and 0.3 * 0.9 beat 0.6 * 0.4
    assert growth.paths.tolist() == [[4, 1], [5, 3]]
    growth.add(np.array([[7, 8], [9, 0]]), np.array([[0.2, 0.1], [0.3, 0.2]]), 10)
    assert growth.tree().tokens.tolist() == [4, 5, 1, 2, 3]
    assert growth.tree().parents.tolist() == [-1, -1, 0, 0, 1]


@given(
    top_k=st.integers(1, 4),
    depth=st.integers(2, 4),
    nodes=st.integers(0, 20),
    ties=st.booleans(),
    seed=st.integers(0, 999),
)
def test_what_can_no_longer_be_in_the_tree_is_not_drafted_on(
    top_k: int, depth: int, nodes: int, ties: bool, seed: int
) -> None:
    """To let every node of the tree have children is to change nothing but the rows that are run for it."""
    shape = DraftShape((top_k,) * depth, nodes)

    def grown(narrowing: bool) -> tuple[DynamicGrowth, int]:
        growth, rows = DynamicGrowth(shape), 0
        for _ in range(depth):
            tree = growth.tree()
            if narrowing:
                growth.narrow(np.ones(1 + len(tree), dtype=np.bool_))
            if not len(growth.frontier):
                break
            rows += len(growth.frontier)
            draws = [np.random.default_rng([seed, *path]) for path in growth.paths.tolist()]
            tokens = np.array([draw.permutation(12)[:top_k] for draw in draws])
            sure = np.array([np.full(top_k, 0.5) if ties else -np.sort(-draw.random(top_k)) for draw in draws])
            growth.add(tokens, sure.astype(np.float32), 12)
        return growth, rows

    (one, fewer), (other, rows) = grown(True), grown(False)
    assert fewer <= rows
    assert one.tree().tokens.tolist() == other.tree().tokens.tolist()
    assert one.tree().parents.tolist() == other.tree().parents.tolist()


def test_only_chosen_nodes_of_the_tree_get_children() -> None:
    growth = DynamicGrowth(DraftShape((2, 2, 2), 3))
    growth.add(np.array([[4, 5]]), np.array([[0.6, 0.3]]), 10)
    growth.add(np.array([[1, 2], [3, 6]]), np.array([[0.9, 0.1], [0.5, 0.4]]), 10)
    assert growth.paths.tolist() == [[4, 1], [5, 3]]
    assert growth.tree().tokens.tolist() == [4, 5, 1]  # 3 is not among the best
    growth.narrow(np.array([False, False, True, True]))
    assert growth.paths.tolist() == [[4, 1]]
    assert growth.above.tolist() == [0]
    growth.narrow(np.array([True, True, True, False]))
    assert growth.ended
