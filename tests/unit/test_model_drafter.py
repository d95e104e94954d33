"""The draft model's catch-up: rows that several sequences lack in one block are run once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from draftwing.core import DraftShape, DraftTree, SamplingParams, StepPlan
from draftwing.drafters import model_drafter
from draftwing.drafters.base import Accepted, NullController, TargetInfo
from draftwing.testing.drafter_contract import VOCAB_SIZE, DrafterContract, Start, bound
from draftwing.testing.drafters import View
from draftwing.testing.mock_draft_model import MockDraftModel
from draftwing.testing.mock_target import MockBehaviour, MockTarget

VOCAB, SIZE = 32, 4  # tokens of a block
PROMPT = [3 + (7 * i) % 29 for i in range(22)]
FULL = len(PROMPT) // SIZE  # blocks that are shared
OWN = 6  # further blocks of each sequence


def a_drafter() -> MockDraftModel:
    drafter = MockDraftModel(MockTarget(MockBehaviour(VOCAB)))
    drafter.bind(TargetInfo(vocab_size=VOCAB, context_length=128))
    drafter.reserve(FULL + 4 * OWN, SIZE)
    return drafter


def a_view(number: int) -> View:
    """A sequence that shares the full blocks of its prompt and goes on in blocks of its own."""
    view = View(f"view {number}", list(PROMPT), len(PROMPT), SamplingParams(temperature=0.8, seed=number))
    view.table = [*range(FULL), *range(FULL + number * OWN, FULL + (number + 1) * OWN)]
    view.chain = [bytes([block]) * 32 for block in range(FULL)]
    return view


def rows_run(drafter: MockDraftModel) -> int:
    pages = drafter._model._pages  # type: ignore[attr-defined]
    return int(pages.rows)


def propose(drafter: MockDraftModel, views: list[View], asked: set[int]) -> list[DraftTree]:
    shape, none = DraftShape((1, 1, 1), 3), DraftShape((), 0)
    plan = StepPlan("it", tuple(shape if number in asked else none for number in range(len(views))))
    return drafter.propose(views, plan, NullController())


def commit(drafter: MockDraftModel, views: list[View], token: int) -> None:
    """No node is accepted; one token is committed."""
    for view in views:
        view.tokens.append(token)
    drafter.commit(views, [Accepted(np.empty(0, dtype=np.int64), 1)] * len(views))


@pytest.mark.parametrize(
    "test", [DrafterContract.test_only_chosen_nodes_get_children, DrafterContract.test_no_draft_means_none]
)
def test_keeps_the_contract(test: Callable[[DrafterContract, Start], None]) -> None:
    """Of a shape without levels, and of nodes that are not chosen."""
    test(DrafterContract(), Start(lambda: bound(MockDraftModel(MockTarget(MockBehaviour(VOCAB_SIZE))))))


@pytest.mark.parametrize("chunk", [1, 3, 4, 9, 256])
@pytest.mark.parametrize("count", [2, 3])
def test_shared_blocks_are_run_once(chunk: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_drafter, "CHUNK", chunk)
    drafter, views = a_drafter(), [a_view(number) for number in range(count)]
    drafts = propose(drafter, views, set(range(count)))
    rest = len(PROMPT) - FULL * SIZE + 2  # of a prompt, and the draft's nodes but the last
    assert rows_run(drafter) == FULL * SIZE + count * rest
    commit(drafter, views, 5)
    drafts += propose(drafter, views, set(range(count)))
    for number in range(count):
        alone, view = a_drafter(), a_view(number)
        expected = propose(alone, [view], {0})
        commit(alone, [view], 5)
        expected += propose(alone, [view], {0})
        for draft, other in zip(drafts[number::count], expected, strict=True):
            assert draft.tokens.tolist() == other.tokens.tolist()
            assert draft.confidences is not None
            assert draft.confidences.tolist() == pytest.approx(other.confidences)


def test_one_that_falls_behind_goes_on_behind_the_other() -> None:
    """Also where it was known, and stopped before its first row, when the other ran what both lack."""
    drafter, views = a_drafter(), [a_view(0), a_view(1)]
    stopped = NullController()
    stopped.deeper = lambda depth, drafts: [np.zeros(1 + len(draft), dtype=np.bool_) for draft in drafts]  # type: ignore[method-assign]
    shapes = (DraftShape((1, 1, 1), 3),) * 2
    drafter.propose(views, StepPlan("it", shapes), stopped)
    assert rows_run(drafter) == 0
    propose(drafter, views, {1})
    commit(drafter, views, 5)
    before = rows_run(drafter)
    propose(drafter, views, {0})
    assert rows_run(drafter) - before == len(PROMPT) + 1 - FULL * SIZE + 2


def test_a_filled_block_behind_one_that_is_not_stays_as_it_is() -> None:
    """Equal sequences may have blocks of their own for the same tokens and then share one again."""
    drafter, one, other = a_drafter(), a_view(0), a_view(1)
    other.table[2] = other.table.pop()
    propose(drafter, [one], {0})
    commit(drafter, [one], 5)
    commit(drafter, [other], 5)
    before = rows_run(drafter)
    drafts = propose(drafter, [one, other], {0, 1})
    lacking = SIZE + len(PROMPT) + 1 - FULL * SIZE + 2  # of the other; the one runs its new root and its draft
    assert rows_run(drafter) - before == lacking + 1 + 2
    alone = a_drafter()
    propose(alone, [other], {0})
    assert drafts[1].tokens.tolist() == propose(alone, [other], {0})[0].tokens.tolist()
