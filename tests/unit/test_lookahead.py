"""Lookahead: what the target chose after refused nodes is proposed later, and the window iterates."""

from __future__ import annotations

import numpy as np

from draftwing.core import DraftShape, DraftTree, IntArray, StepPlan
from draftwing.drafters.base import Accepted, NullController
from draftwing.drafters.lookahead import LookaheadDrafter, LookaheadOptions
from draftwing.testing.drafters import View

CHAIN = DraftShape((1,) * 4, 4)


def following(token: int) -> int:
    """The target of these tests: a cycle through 1..30."""
    return (7 * token) % 31


def step(drafter: LookaheadDrafter, view: View, shape: DraftShape, *, choices: bool = True) -> int:
    """One verify; how many draft tokens were accepted."""
    (draft,) = drafter.propose([view], StepPlan("it", (shape,)), NullController())
    chosen: IntArray = np.array([following(t) for t in [view.tokens[-1], *draft.tokens.tolist()]])
    nodes: list[int] = []
    node = -1
    while True:
        view.tokens.append(int(chosen[node + 1]))
        below = [n for n in range(len(draft)) if draft.parents[n] == node and draft.tokens[n] == view.tokens[-1]]
        if not below:
            break
        nodes.append(node := below[0])
    drafter.commit([view], [Accepted(np.array(nodes, dtype=np.int64), len(nodes) + 1, chosen if choices else None)])
    return len(nodes)


def test_a_chain_iterates_towards_the_output() -> None:
    """No token of the output was seen before, so only what the target chose in verifies can be right."""
    accepted = {}
    for choices in (True, False):
        view = View("a", [1, 2, 3, 5], 4)
        drafter = LookaheadDrafter(LookaheadOptions(ngram=2))
        accepted[choices] = sum(step(drafter, view, CHAIN, choices=choices) for _ in range(14))
    assert accepted[True] >= 4
    assert accepted[False] == 0


def test_refused_nodes_fill_the_pool() -> None:
    view = View("a", [1, 2, 3, 5], 4)
    drafter = LookaheadDrafter(LookaheadOptions(ngram=2, window=3))
    drafter.propose([view], StepPlan("it", (CHAIN,)), NullController())
    state = drafter._states["a"]
    draft = state.draft
    assert len(draft) == 3
    chosen = np.array([9, *(following(t) for t in draft.tokens.tolist())])
    view.tokens.append(9)
    drafter.commit([view], [Accepted(np.empty(0, dtype=np.int64), 1, chosen)])
    for token in draft.tokens.tolist():
        assert (following(token),) in state.pool[token]
    assert (9,) in state.pool[5], "committed text is in the pool"


def test_a_tree_has_the_pool_first_then_trunk_and_branches() -> None:
    view = View("a", [1, 2, 3, 5], 4)
    drafter = LookaheadDrafter(LookaheadOptions(ngram=3, window=3))
    shape = DraftShape((3, 2, 2, 1), 20)
    sizes = []
    for _ in range(6):
        (draft,) = drafter.propose([view], StepPlan("it", (shape,)), NullController())
        sizes.append(len(draft))
        step(drafter, view, shape)
    assert sizes[0] == 3, "a trunk of three columns that hold one token each"
    assert max(sizes[1:]) > 4


def test_choices_of_another_draft_are_not_learned() -> None:
    view = View("a", [1, 2, 3, 5], 4)
    drafter = LookaheadDrafter(LookaheadOptions(ngram=2))
    drafter.propose([view], StepPlan("it", (CHAIN,)), NullController())
    view.tokens.append(9)
    drafter.commit([view], [Accepted(np.empty(0, dtype=np.int64), 1, np.array([9]))])
    assert set(drafter._states["a"].pool) == {1, 2, 3, 5}
    assert isinstance(drafter._states["a"].draft, DraftTree)


def test_the_next_trunk_is_what_the_target_chose_after_each_token_of_the_last() -> None:
    view = View("a", [1, 2, 3, 5], 4)
    drafter = LookaheadDrafter(LookaheadOptions(ngram=2))
    plan = StepPlan("it", (DraftShape((1,) * 3, 3),))
    (draft,) = drafter.propose([view], plan, NullController())
    assert len(draft) == 3
    view.tokens.append(9)
    drafter.commit([view], [Accepted(np.empty(0, dtype=np.int64), 1, np.array([9, 11, 12, 13]))])
    (draft,) = drafter.propose([view], plan, NullController())
    assert draft.tokens.tolist() == [11, 12, 13]
