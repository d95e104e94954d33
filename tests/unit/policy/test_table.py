"""Mode `table`: the row that holds the batch decides."""

from __future__ import annotations

import numpy as np
import pytest

from draftwing.core import NO_DRAFT, DraftShape, Request, SamplingParams
from draftwing.drafters.ngram import NgramDrafter
from draftwing.errors import ConfigError
from draftwing.policy.artifact import ScheduleRow
from draftwing.policy.table import TablePolicy, row_for
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.policies import plan_inputs_of
from draftwing.testing.run_engine import make_engine, run_to_end

ROWS = (
    ScheduleRow(1, 256, (2, 1, 1), 6, 2.0, 50.0, 1.5),
    ScheduleRow(1, 2048, (1, 1), 2, 1.8, 40.0, 1.3),
    ScheduleRow(4, 2048, (1,), 1, 1.5, 100.0, 1.1),
    ScheduleRow(16, 2048, (), 0, 1.0, 200.0, 1.0),
)


@pytest.mark.parametrize(
    ("batch", "context", "row"),
    [(1, 10, 0), (1, 256, 0), (1, 257, 1), (1, 9999, 1), (2, 10, 2), (4, 10, 2), (5, 10, 3), (64, 10, 3)],
)
def test_the_smallest_bucket_that_holds_it(batch: int, context: float, row: int) -> None:
    assert row_for(ROWS, batch, context) is ROWS[row]
    assert row_for(ROWS[::-1], batch, context) is ROWS[row]


def test_everybody_drafts_its_shape_within_their_room() -> None:
    policy = TablePolicy("lookup", ROWS)
    assert policy.largest == DraftShape((2, 1, 1), 6)
    plan = policy.decide(plan_inputs_of(1))
    assert plan.shapes == (DraftShape((2, 1, 1), 6),)
    assert plan.drafter == "lookup"
    assert "1.50x plain" in plan.reason
    plan = policy.decide(plan_inputs_of(4, tokens_left=[9, 1, 9, 9], nodes_left=[9, 9, 0, 9]))
    assert plan.shapes == (DraftShape((1,), 1), NO_DRAFT, NO_DRAFT, DraftShape((1,), 1))
    assert set(policy.decide(plan_inputs_of(8)).shapes) == {NO_DRAFT}
    assert policy.decide(plan_inputs_of(0)).shapes == ()


def test_no_rows_are_an_error() -> None:
    with pytest.raises(ConfigError, match="no schedule; run draftwing tune"):
        TablePolicy("lookup", ())


def test_the_output_is_that_of_plain_decoding() -> None:
    def engine_tokens(table: bool) -> list[list[int]]:
        runner = MockTarget(MockBehaviour(vocab_size=12, order=1, sharpness=8.0), slots=1024)
        engine = make_engine(runner, drafter=NgramDrafter())
        if table:
            engine.policy = TablePolicy("", ROWS)
        params = SamplingParams(max_tokens=20, temperature=0.7, seed=3, ignore_eos=True)
        received = run_to_end(engine, [Request(f"{i}", [i, 1, 2, 1], params) for i in range(4)])
        assert (engine.counters.draft_tokens > 0) == table
        return [one.tokens for one in received.values()]

    assert engine_tokens(True) == engine_tokens(False)
    assert np.unique([len(tokens) for tokens in engine_tokens(True)]).tolist() == [20]
