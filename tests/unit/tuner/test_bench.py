"""The bench times what it says, on the mock target under a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import pytest
from torch import Tensor

from draftwing.core import Request, SamplingParams
from draftwing.drafters.base import DrafterTraits
from draftwing.drafters.ngram import NgramDrafter
from draftwing.engine.batch import SequenceRows
from draftwing.errors import SetupError
from draftwing.policy.artifact import curves_of_rows
from draftwing.policy.cost import CostModel
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.run_engine import make_engine, run_to_end
from draftwing_tuner.bench import Bench, bounds_of
from draftwing_tuner.fit import cost_rows, fit_error
from draftwing_tuner.grid import Cell, grid
from draftwing_tuner.measure import summarise

BLOCKS, SIZE = 512, 16


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Timed(MockTarget):
    """A mock target whose forward takes 10 ms, 1 ms a row, and 10 us a cached token."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(MockBehaviour(vocab_size=64), slots=BLOCKS * SIZE)
        self.clock = clock
        self.seen: list[tuple[int, int, list[int]]] = []

    def forward(self, sequences: Seq[SequenceRows]) -> Tensor:
        rows, context = sum(len(s.tokens) for s in sequences), sum(s.kv_len for s in sequences)
        self.clock.seconds += (10 + rows + context / 100) / 1e3
        self.seen.append((len(sequences), rows, [s.kv_len for s in sequences]))
        return super().forward(sequences)


def make_bench(sequences: int = 4, context: int = 512) -> tuple[Bench, Timed]:
    clock = Clock()
    runner = Timed(clock)
    engine = make_engine(
        runner, drafter=NgramDrafter(), blocks=BLOCKS, block_tokens=SIZE, sequences=sequences, context=context
    )
    return Bench(engine, "lookup", [1, 2, 3, 4, 5], clock), runner


def test_a_verify_runs_just_the_rows_and_context_of_its_cell() -> None:
    bench, runner = make_bench()
    for cell in (Cell("verify", 3, 8, 32), Cell("verify", 1, 1, 256), Cell("verify", 4, 4, 32)):
        taken = bench.sample(cell)
        assert runner.seen[-1] == (cell.batch, cell.rows, [cell.context] * cell.batch)
        assert taken == pytest.approx(10 + cell.rows + cell.batch * cell.context / 100)


def test_other_parts_of_a_step_do_not_run_the_target() -> None:
    bench, runner = make_bench()
    bench.sample(Cell("verify", 1, 1, 32))
    before = len(runner.seen)
    for cell in (Cell("draft", 2, depth=3, width=1), Cell("catch_up", rows=4), Cell("overhead", 4)):
        assert bench.sample(cell) == 0  # the clock stands still but for forwards
    assert len(runner.seen) == before


def test_the_engine_is_as_before_and_serves() -> None:
    bench, _ = make_bench()
    engine = bench.engine
    request = Request("r", [1, 2, 3], SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True))
    before = run_to_end(engine, [request])["r"].tokens
    for cell in grid(bench.bounds, DrafterTraits(trees=True)):
        bench.sample(cell)
    bench.close()
    engine.check()
    assert run_to_end(engine, [request])["r"].tokens == before


def test_the_fit_of_a_measured_grid_is_the_machine() -> None:
    bench, _ = make_bench(sequences=8)
    cells = grid(bench.bounds, DrafterTraits(trees=True))
    summaries = [summarise(cell, [bench.sample(cell)] * 6) for cell in cells]
    error = fit_error(summaries)
    assert error is not None
    assert error.largest < 1e-6
    assert error.between > 0
    costs = CostModel.fit(curves_of_rows(cost_rows(summaries), name="x", how="", block=True))
    rows = np.array([1.0, 7.0, 21.0, 60.0])
    assert costs.verify_ms(rows, 500.0) == pytest.approx(10 + rows + 5)


def test_bounds_follow_the_cache() -> None:
    clock = Clock()
    engine = make_engine(Timed(clock), blocks=20, block_tokens=16, sequences=8, context=256)
    bounds = bounds_of(engine)
    assert bounds.sequences == 2
    assert bounds.contexts == (32,)
    with pytest.raises(SetupError, match="leave no room"):
        bounds_of(make_engine(Timed(clock), blocks=5, block_tokens=16, sequences=8, context=64))
