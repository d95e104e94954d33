"""A draft grown level by level is the one that a loop over nodes would grow."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from draftwing.core import DraftShape
from draftwing.drafters.growth import Growth

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


def test_nothing_grown_is_the_empty_draft() -> None:
    assert len(Growth(DraftShape()).tree()) == 0
