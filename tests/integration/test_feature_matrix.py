"""Rule R1 across features on the mock target, and proof that the matrix notices faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftwing.engine import commit, rows, step
from draftwing.engine.logprobs import logprobs
from draftwing.engine.processors import SamplerState
from draftwing.testing.feature_matrix import Cell, pairwise_cells, random_cells, run_cell

CELLS = pairwise_cells()
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("cell", CELLS, ids=map(str, CELLS))
def test_every_pair_of_features(cell: Cell) -> None:
    run_cell(cell)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_cells_of_the_whole_product(seed: int) -> None:
    faults = []
    for cell in random_cells(100, seed):
        try:
            run_cell(cell)
        except AssertionError as error:
            faults.append(str(error))
    # Some cells of the product name what can't come together often; a wrong output is another matter.
    assert not [fault for fault in faults if "never met" not in fault], "\n".join(faults)
    assert len(faults) <= 10, "\n".join(faults)


PLAIN = Cell(
    "oracle", False, 0.0, 0, False, False, "length", False, None, False, 1, "alone", False, False, False, False
)


def an_end_inside_a_run_is_overlooked(patch: pytest.MonkeyPatch) -> None:
    append = commit.append

    def deaf(sequence: Any, tokens: list[int], finite: list[bool], ends: tuple[int, ...]) -> Any:
        return append(sequence, tokens, finite, ends if len(tokens) == 1 else ())

    patch.setattr(commit, "append", deaf)


def logprobs_are_those_of_the_root(patch: pytest.MonkeyPatch) -> None:
    right = logprobs
    patch.setattr(step, "logprobs", lambda logits, rows, *more: right(logits, np.full_like(rows, rows[0]), *more))


def resumed_positions_count_from_zero(patch: pytest.MonkeyPatch) -> None:
    right = rows.Layout.sample_rows

    def shifted(layout: Any) -> Any:
        sample = right(layout)
        resumed = np.array([len(s.request.generated_ids) for s in layout.sequences], dtype=np.int64)
        sample.positions = sample.positions - resumed[layout.owner]
        return sample

    patch.setattr(rows.Layout, "sample_rows", shifted)


def every_choice_draws_the_same_noise(patch: pytest.MonkeyPatch) -> None:
    create = SamplerState.create
    patch.setattr(SamplerState, "create", lambda *args, **more: create(*args, **{**more, "choice": 0}))


def min_tokens_is_forgotten_in_drafts(patch: pytest.MonkeyPatch) -> None:
    right = rows.Layout.sample_rows

    def late(layout: Any) -> Any:
        sample = right(layout)
        sample.positions = sample.positions + 100 * (layout.depths > 0)
        return sample

    patch.setattr(rows.Layout, "sample_rows", late)


FAULTS: list[tuple[Patch, Cell]] = [
    (an_end_inside_a_run_is_overlooked, replace(PLAIN, ending="eos")),
    (logprobs_are_those_of_the_root, replace(PLAIN, logprobs=3)),
    (resumed_positions_count_from_zero, replace(PLAIN, temperature=0.8, resume=True)),
    (every_choice_draws_the_same_noise, replace(PLAIN, temperature=0.8, n=3)),
    (min_tokens_is_forgotten_in_drafts, replace(PLAIN, min_tokens=True)),
]


@pytest.mark.parametrize(("fault", "cell"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_planted_fault_is_noticed(fault: Patch, cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    run_cell(cell)
    fault(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        run_cell(cell)
    assert "never met" not in str(caught.value)
