"""The oracle is as right as it was told to be, in chains and trees, and the same in every run."""

from __future__ import annotations

import pytest

from draftwing.core import DraftShape, DraftTree, StepPlan
from draftwing.drafters.base import NullController, TargetInfo
from draftwing.drafters.validate import checked
from draftwing.testing.drafters import OracleDrafter, View

VOCAB = 40
PROMPT = [1, 2, 3]
OUTPUT = [(7 * i + 3) % VOCAB for i in range(2000)]


def oracle(accuracy: float, seed: int = 0) -> OracleDrafter:
    drafter = OracleDrafter({tuple(PROMPT): OUTPUT}, accuracy, seed)
    drafter.bind(TargetInfo(vocab_size=VOCAB, context_length=4096))
    return drafter


def draft(drafter: OracleDrafter, done: int, shape: DraftShape) -> DraftTree:
    view = View("a", PROMPT + OUTPUT[:done], len(PROMPT))
    drafts = drafter.propose([view], StepPlan("o", (shape,)), NullController())
    assert checked(drafts, [shape], VOCAB)[1] == 0
    return drafts[0]


def accepted(tree: DraftTree, truth: list[int]) -> list[int]:
    """Nodes a verify would accept."""
    path: list[int] = []
    for token in truth:
        parent = path[-1] if path else -1
        hits = [n for n, p in enumerate(tree.parents.tolist()) if p == parent and tree.tokens[n] == token]
        if not hits:
            break
        path.append(hits[0])
    return path


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("accuracy", [0.0, 0.7, 1.0])
def test_accuracy_is_as_set(accuracy: float, width: int) -> None:
    drafter, shape = oracle(accuracy), DraftShape((width, 1), 2 * width)
    first, second, branched = 0, 0, 0
    for done in range(1000):
        path = accepted(draft(drafter, done, shape), OUTPUT[done : done + 2])
        first += len(path) > 0
        second += len(path) > 1
        branched += bool(path and path[0] > 0)
    assert first / 1000 == pytest.approx(accuracy, abs=0.04)
    assert second / max(first, 1) == pytest.approx(accuracy, abs=0.05)
    assert branched / max(first, 1) == pytest.approx((width - 1) / width if accuracy else 0, abs=0.05)


def test_drafts_depend_on_position_alone() -> None:
    chain = DraftShape((1,) * 4, 4)
    for done in range(30):
        whole = draft(oracle(0.7), done, chain)
        assert whole.tokens.tolist() == draft(oracle(0.7), done, chain).tokens.tolist()
        right = accepted(whole, OUTPUT[done:])
        if right:  # the same positions are right when asked one token later
            assert len(accepted(draft(oracle(0.7), done + 1, chain), OUTPUT[done + 1 :])) >= len(right) - 1
    assert any(
        draft(oracle(0.7), done, chain).tokens.tolist() != draft(oracle(0.7, seed=1), done, chain).tokens.tolist()
        for done in range(30)
    )


def test_trees_fill_level_by_level_and_stay_in_the_budget() -> None:
    tree = draft(oracle(1.0), 0, DraftShape((3, 2, 1), 7))
    assert tree.parents.tolist() == [-1, -1, -1, 0, 0, 1, 1]


def test_an_output_that_differs_or_ends_is_drafted_wrong() -> None:
    view = View("a", [*PROMPT, OUTPUT[0], 39, 39], len(PROMPT))
    plan = StepPlan("o", (DraftShape((1,) * 3, 3),))
    assert len(oracle(1.0).propose([view], plan, NullController())[0]) == 3
    assert len(draft(oracle(1.0), len(OUTPUT), plan.shapes[0])) == 3
