"""Rule R1 across features with the trained heads of the goldens: what is accepted and branched into really was."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from draftwing.testing.feature_matrix import Cell, run_cell
from draftwing.testing.golden_world import HEADS, GoldenWorld, golden_cells
from draftwing.testing.goldens.run import goldens_folder
from tests.conftest import ROOT

WORLD = partial(GoldenWorld, goldens_folder(ROOT / "tests" / "goldens"))
CELLS = golden_cells()
TREE: dict[str, Any] = {
    "tree": True, "temperature": 0.8, "top_k": 0, "penalties": True, "logit_bias": False, "ending": "length",
    "ignore_eos": False, "logprobs": None, "min_tokens": False, "n": 3, "batch": "alone", "prefix": True,
    "preempt": False, "resume": False, "ties": False,
}  # fmt: skip
FIRST = {"dflash2": 12, "eagle1_bias": 2, "eagle3_fullvocab": 9}  # seeds at which everything happens
SAMPLE = [Cell(drafter=head, **TREE) for head in HEADS]


@pytest.mark.parametrize("cell", SAMPLE, ids=map(str, SAMPLE))
def test_every_head(cell: Cell) -> None:
    run_cell(cell, WORLD, FIRST.get(cell.drafter, 0))


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_every_pair_of_features(head: str) -> None:
    faults = []
    for cell in (cell for cell in CELLS if cell.drafter == head):
        try:
            run_cell(cell, WORLD)
        except AssertionError as error:
            faults.append(str(error))
    # Some cells name what can't come together often; a wrong output is another matter.
    assert not [fault for fault in faults if "never met" not in fault], "\n".join(faults)
    assert len(faults) <= 1, "\n".join(faults)
