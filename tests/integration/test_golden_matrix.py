"""Rule R1 across features on the golden targets: what is accepted and branched into really was."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from draftwing.testing.feature_matrix import Cell, World, run_cell
from draftwing.testing.golden_world import HEADS, TARGETS, golden_cells, with_head, without_head
from draftwing.testing.goldens.case import Case
from draftwing.testing.goldens.run import goldens_folder
from tests.conftest import ROOT
from tests.integration.weaker import weaker_model

GOLDENS = goldens_folder(ROOT / "tests" / "goldens")
WORLD = with_head(GOLDENS)
CELLS = golden_cells(list(HEADS))
METHODS = ("draft_model", "ngram", "suffix", "lookahead")
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
    assert_right((cell for cell in CELLS if cell.drafter == head), WORLD, never_met=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_methods_without_a_head(name: str, tmp_path: Path) -> None:
    """Every pair of features over all targets, a share of the cells on each."""
    target = Case(GOLDENS / name).part("target")
    assert target is not None
    cells = golden_cells(METHODS)[TARGETS.index(name) :: len(TARGETS)]
    assert_right(cells, without_head(target, weaker_model(target, tmp_path / "weaker")), never_met=2)


def assert_right(cells: Iterable[Cell], world: Callable[[Cell, int], World], never_met: int) -> None:
    """Some cells name what can't come together often; a wrong output is another matter."""
    faults = []
    for cell in cells:
        try:
            run_cell(cell, world)
        except AssertionError as error:
            faults.append(str(error))
    assert not [fault for fault in faults if "never met" not in fault], "\n".join(faults)
    assert len(faults) <= never_met, "\n".join(faults)
