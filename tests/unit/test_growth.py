"""A draft grown level by level is the one that a loop over nodes would grow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwing.core import DraftShape, DraftSources
from draftwing.drafters.growth import Growth
from draftwing.drafters.tree import shape_of

VOCAB = 9


@given(
    branching=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple),
    nodes=st.integers(0, 30),
    seed=st.integers(0, 1000),
)
def test_like_a_loop(branching: tuple[int, ...], nodes: int, seed: int) -> None:
    shape, draw = DraftShape(branching, nodes), np.random.default_rng(seed)
    growth, tokens, parents, confidences = Growth(shape), [], [], []  # type: ignore[var-annotated]
    frontier: list[int] = [-1]
    for width, next_width in zip(branching, (*branching[1:], None), strict=True):
        offered = draw.integers(0, VOCAB + 2, (len(frontier), max(branching)))  # some are outside of the vocabulary
        sure = draw.random(offered.shape).astype(np.float32)
        growth.add(offered, sure, VOCAB)
        grown = []
        for node, row, chances in zip(frontier, offered.tolist(), sure.tolist(), strict=True):
            for token, chance in zip(row[:width], chances, strict=False):
                if token < VOCAB and len(tokens) < nodes:
                    grown.append(len(tokens))
                    tokens.append(token)
                    parents.append(node)
                    confidences.append(chance)
        # Only those below which there is room, were all that is offered in the vocabulary.
        frontier = [] if next_width is None else grown[: -(-(nodes - len(tokens)) // next_width)]
        assert growth.frontier.tolist() == frontier
        for node, path in zip(frontier, growth.paths.tolist(), strict=True):
            above: list[int] = []
            while node >= 0:
                above.insert(0, tokens[node])
                node = parents[node]
            assert path == above
    tree = growth.tree()
    assert tree.tokens.tolist() == tokens
    assert tree.parents.tolist() == parents
    assert tree.confidences is not None
    assert tree.confidences.tolist() == confidences
    assert growth.size == len(tree) <= nodes


PATHS = ((0,), (1,), (2,), (0, 0), (2, 0), (0, 0, 0), (2, 0, 0), (2, 0, 1))


@pytest.mark.parametrize("shape", [shape_of(PATHS), DraftShape((3, 2, 2), 11), DraftShape((1, 1, 1), 3)], ids=str)
@pytest.mark.parametrize("missing", [False, True])
def test_what_children_were_drawn_from_is_found_at_their_parent(shape: DraftShape, missing: bool) -> None:
    """Each row's sources name it; children of the last levels may be left out."""
    growth, given = Growth(shape), dict[int, int]()
    while not growth.ended:
        rows = len(growth.frontier)
        tokens = np.tile(np.arange(3), (rows, 1))
        if missing and len(given) > 1:
            tokens[0] = VOCAB  # no token
        marks = len(given) + np.arange(rows)
        given |= dict(zip(growth.frontier.tolist(), marks.tolist(), strict=True))
        sources = DraftSources(np.repeat(marks[:, None], 4, axis=1), np.full((rows, 4), 0.25, dtype=np.float32))
        growth.add(tokens, np.full((rows, 3), 0.5, dtype=np.float32), VOCAB, sources)
    tree = growth.tree()
    assert tree.sources is not None
    for parent in set(tree.parents.tolist()):
        assert tree.sources.ids[1 + parent, 0] == given[parent]


def test_nothing_grown_is_the_empty_draft() -> None:
    assert len(Growth(DraftShape()).tree()) == 0


@pytest.mark.parametrize("shape", [shape_of(PATHS), DraftShape((3, 2, 2), 30)], ids=str)
def test_only_chosen_nodes_get_children(shape: DraftShape) -> None:
    """Of the newest level; above tells the place of each one's parent in the frontier before."""
    growth, sure = Growth(shape), np.full((3, 3), 0.5, dtype=np.float32)
    growth.add(np.array([[1, 2, 3]]), sure[:1], VOCAB)
    growth.narrow(np.array([True, False, False, True]))
    assert growth.frontier.tolist() == [2]
    growth.add(np.array([[4, 5, 6]]), sure[:1], VOCAB)
    assert growth.tree().parents.tolist()[3:] == ([2] if shape.paths else [2, 2])
    assert growth.above.tolist() == [0] * len(growth.frontier)
    assert growth.paths.tolist()[0] == [3, 4]
    growth.narrow(np.zeros(1 + growth.size, dtype=np.bool_))
    assert growth.ended
