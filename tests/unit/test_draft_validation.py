"""Rule R3 for drafts: garbage costs that draft and nothing else, and sound drafts pass untouched."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwing.core import NO_DRAFT, DraftShape, DraftTree
from draftwing.drafters.tree import children, depths
from draftwing.drafters.validate import checked, without_doubles

VOCAB = 50
CHAIN, TREE = DraftShape((1,) * 4, 4), DraftShape((3, 2, 1), 12)


def tree(tokens: Any, parents: Any, confidences: Any = None) -> DraftTree:
    return DraftTree(np.array(tokens), np.array(parents), None if confidences is None else np.array(confidences))


GOOD = tree([5, 6, 7, 8, 9], [-1, -1, 0, 0, 2], [0.5, 0.25, 1.0, 0.0, 0.1])
BAD = {
    "none at all": None,
    "a list": [1, 2, 3],
    "lists inside": DraftTree([1], [-1]),  # type: ignore[arg-type]
    "nothing inside": DraftTree(None, None),  # type: ignore[arg-type]
    "float tokens": tree([1.0], [-1]),
    "float parents": tree([1], [-1.0]),
    "two axes": tree([[1]], [[-1]]),
    "no axis": tree(1, -1),
    "objects": DraftTree(np.array([object()]), np.array([-1])),
    "lengths differ": tree([1, 2], [-1]),
    "id below 0": tree([-1], [-1]),
    "id beyond the vocabulary": tree([VOCAB], [-1]),
    "id of 64 bits": DraftTree(np.array([2**64 - 1], dtype=np.uint64), np.array([-1])),
    "parent of itself": tree([1, 2], [-1, 1]),
    "parent after the child": tree([1, 2], [1, -1]),
    "parent below -1": tree([1], [-2]),
    "parent beyond": tree([1], [9]),
    "cycle": tree([1, 2, 3], [-1, 2, 1]),
    "NaN": tree([1], [-1], [np.nan]),
    "confidence above 1": tree([1], [-1], [1.5]),
    "confidence below 0": tree([1], [-1], [-0.5]),
    "infinite confidence": tree([1], [-1], [np.inf]),
    "confidences of ids": tree([1], [-1], [1]),
    "one confidence too few": tree([1, 2], [-1, 0], [1.0]),
    "too many nodes": tree(list(range(13)), [-1, -1, -1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6]),
    "too deep": tree([1, 2, 3, 4], [-1, 0, 1, 2]),
    "too wide at the root": tree([1, 2, 3, 4], [-1] * 4),
    "too wide below": tree([1, 2, 3, 4], [-1, 0, 0, 0]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_draft_costs_itself_alone(name: str) -> None:
    drafts, bad = checked([GOOD, BAD[name], GOOD], [TREE] * 3, VOCAB)
    assert bad == 1
    assert len(drafts[1]) == 0
    for draft in (drafts[0], drafts[2]):
        assert draft.tokens.tolist() == GOOD.tokens.tolist()
        assert draft.parents.tolist() == GOOD.parents.tolist()
        assert draft.confidences is not None


@pytest.mark.parametrize("trees", [None, 3, "drafts", GOOD, [GOOD], [GOOD] * 3, {0: GOOD, 1: GOOD}, iter([GOOD] * 2)])
def test_without_one_draft_a_sequence_all_are_bad(trees: object) -> None:
    drafts, bad = checked(trees, [TREE, TREE], VOCAB)
    assert bad == 2
    assert [len(draft) for draft in drafts] == [0, 0]


def test_each_sequence_has_its_own_shape() -> None:
    chain = DraftTree.chain([1, 2, 3, 4])
    drafts, bad = checked([chain, chain, DraftTree.empty(), chain], [CHAIN, TREE, NO_DRAFT, NO_DRAFT], VOCAB)
    assert bad == 2
    assert [len(draft) for draft in drafts] == [4, 0, 0, 0]
    assert checked([], [], VOCAB) == ([], 0)


def test_narrow_types_are_widened() -> None:
    narrow = DraftTree(np.array([5], dtype=np.uint8), np.array([-1], dtype=np.int8), np.array([1.0], dtype=np.float16))
    (draft,), bad = checked((narrow,), [CHAIN], VOCAB)
    assert bad == 0
    assert draft.confidences is not None
    assert [str(array.dtype) for array in (draft.tokens, draft.parents, draft.confidences)] == [
        "int64",
        "int64",
        "float32",
    ]


def test_siblings_with_one_token_go_with_all_below() -> None:
    doubled = tree([7, 7, 8, 1, 2, 3], [-1, -1, -1, 0, 1, 4], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    (draft,), bad = checked([doubled], [DraftShape((3, 1, 1), 9)], VOCAB)
    assert bad == 0
    assert draft.tokens.tolist() == [7, 8, 1]
    assert draft.parents.tolist() == [-1, -1, 0]
    assert draft.confidences is not None
    assert draft.confidences.tolist() == pytest.approx([0.1, 0.3, 0.4])


garbage = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3), st.lists, max_leaves=5
)
arrays = st.lists(st.integers(-3, VOCAB + 2), max_size=8).map(lambda items: np.array(items, dtype=np.int64))
typed = st.builds(DraftTree, arrays, arrays, st.none() | arrays.map(lambda items: items / VOCAB))
any_tree = st.builds(DraftTree, garbage | arrays, garbage | arrays, garbage | arrays)
shapes = st.builds(
    lambda branching, nodes: DraftShape(tuple(branching), nodes),
    st.lists(st.integers(0, 3), max_size=4),
    st.integers(0, 12),
)


@st.composite
def near_sound(draw: st.DrawFn) -> DraftTree:
    """Trees that are often right: parents precede, few tokens so that siblings repeat."""
    size = draw(st.integers(0, 8))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    return tree(
        np.array([draw(st.integers(0, 3)) for _ in range(size)], dtype=np.int64), np.array(parents, dtype=np.int64)
    )


def slowly_sound(draft: DraftTree, shape: DraftShape) -> bool:
    """The rules, one node at a time."""
    if len(draft) > shape.nodes:
        return False
    found = depths(draft.parents).tolist()
    if any(depth > shape.depth for depth in found):
        return False
    below = children(draft.parents)
    width = [len(below[-1]), *(len(below[node]) for node in range(len(draft)))]
    most = [*shape.branching, 0]
    return all(
        count <= most[depth] for count, depth in zip(width, [0, *(min(d, shape.depth) for d in found)], strict=True)
    )


@given(st.lists(near_sound(), max_size=4), st.data())
@settings(max_examples=100, deadline=None)
def test_soundness_is_decided_as_one_node_at_a_time(trees: list[DraftTree], data: st.DataObject) -> None:
    given_shapes = [data.draw(shapes) for _ in trees]
    drafts, bad = checked(trees, given_shapes, VOCAB)
    expected = [slowly_sound(draft, shape) for draft, shape in zip(trees, given_shapes, strict=True)]
    assert bad == expected.count(False)
    for before, after, sound in zip(trees, drafts, expected, strict=True):
        wanted = without_doubles(before) if sound else DraftTree.empty()
        assert after.tokens.tolist() == wanted.tokens.tolist()
        assert after.parents.tolist() == wanted.parents.tolist()
        families = list(zip(after.parents.tolist(), after.tokens.tolist(), strict=True))
        assert len(set(families)) == len(families)


@given(st.lists(any_tree | typed | near_sound() | garbage, max_size=5) | garbage, st.lists(shapes, max_size=5))
@settings(max_examples=100, deadline=None)
def test_garbage_never_raises(trees: object, given_shapes: list[DraftShape]) -> None:
    drafts, bad = checked(trees, given_shapes, VOCAB)
    assert len(drafts) == len(given_shapes)
    assert 0 <= bad <= len(given_shapes)
    again, bad_again = checked(drafts, given_shapes, VOCAB)
    assert bad_again == 0
    assert [draft.tokens.tolist() for draft in again] == [draft.tokens.tolist() for draft in drafts]


def test_a_large_batch_is_checked_quickly() -> None:
    drafts, given_shapes = [DraftTree.chain(list(range(8)))] * 256, [DraftShape((1,) * 8, 8)] * 256

    def once() -> float:
        start = time.perf_counter()
        checked(drafts, given_shapes, VOCAB)
        return time.perf_counter() - start

    assert min(once() for _ in range(10)) < 5e-3
