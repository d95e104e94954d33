"""Rule R1 by exact equality on the golden targets, and proof that the matrix notices faults."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from draftwing.core import IntArray
from draftwing.engine import batch, commit, rows, step
from draftwing.engine.runner import ModelRunner
from draftwing.testing.goldens.run import goldens_folder
from draftwing.testing.r1_matrix import Bench, Cell, all_cells, assert_happened, pairwise_cells
from tests.conftest import ROOT

TARGETS = ("llama8", "qwen3_8", "mixtral3", "gemma3_6")
PAIRWISE = pairwise_cells(TARGETS)
WHOLE = {key: list(cells) for key, cells in groupby(all_cells(), lambda cell: (cell.drafter, cell.k))}


@lru_cache
def bench(target: str) -> Bench:
    return Bench.load(goldens_folder(ROOT / "tests" / "goldens") / f"hf_greedy_{target}" / "target")


@pytest.mark.parametrize(("target", "cell"), PAIRWISE, ids=[f"{target}-{cell}" for target, cell in PAIRWISE])
def test_pairwise(target: str, cell: Cell) -> None:
    assert_happened(bench(target).run(cell))


@pytest.mark.slow
@pytest.mark.parametrize("part", WHOLE, ids=[f"{drafter}-k{k}" for drafter, k in WHOLE])
@pytest.mark.parametrize("target", TARGETS)
def test_whole(target: str, part: tuple[str, int]) -> None:
    faults = []
    for cell in WHOLE[part]:
        try:
            assert_happened(bench(target).run(cell))
        except AssertionError as error:
            faults.append(f"{cell}: {error}")
    assert not faults, "\n".join(faults)


TREE = Cell("oracle", k=4, width=2, batch=3, chunk=7, sampling="mixed")
Patch = Callable[[pytest.MonkeyPatch], None]


def first_child_is_always_accepted(patch: pytest.MonkeyPatch) -> None:
    def walk(tokens: IntArray, parents: IntArray, targets: IntArray) -> IntArray:
        at = np.arange(len(tokens))
        first = np.array([i == p or i == np.flatnonzero((parents == p) & (at != p))[0] for i, p in enumerate(parents)])
        accepted = first.copy()
        for i in at:
            accepted[i] &= accepted[parents[i]]
        return np.flatnonzero(accepted)

    patch.setattr(step, "accepted_rows", walk)


def a_node_is_accepted_whatever_its_parent(patch: pytest.MonkeyPatch) -> None:
    def walk(tokens: IntArray, parents: IntArray, targets: IntArray) -> IntArray:
        return np.flatnonzero((tokens == targets[parents]) | (parents == np.arange(len(tokens))))

    patch.setattr(step, "accepted_rows", walk)


def nothing_is_accepted(patch: pytest.MonkeyPatch) -> None:
    """Right tokens without any gain: only the counts can tell."""
    patch.setattr(step, "accepted_rows", lambda tokens, parents, _: np.flatnonzero(parents == np.arange(len(tokens))))


def the_bonus_token_is_lost(patch: pytest.MonkeyPatch) -> None:
    append = commit.append

    def short(sequence: Any, tokens: list[int], finite: list[bool], eos: tuple[int, ...]) -> Any:
        keep = max(len(tokens) - 1, min(len(tokens), 1))
        return append(sequence, tokens[:keep], finite[:keep], eos)

    patch.setattr(commit, "append", short)


def accepted_rows_stay_where_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelRunner, "move", lambda self, source, target: None)


def siblings_see_each_other(patch: pytest.MonkeyPatch) -> None:
    ancestry = batch.ancestry

    def leaky(parents: IntArray) -> tuple[IntArray, Any]:
        depths, ancestors = ancestry(parents)
        seen = np.arange(parents.shape[-1])
        return depths, ancestors | (seen[None, :] <= seen[:, None])

    patch.setattr(batch, "ancestry", leaky)


def noise_is_that_of_the_root_at_every_node(patch: pytest.MonkeyPatch) -> None:
    def flat(layout: rows.Layout) -> Any:
        sample = right(layout)
        sample.positions = sample.positions - layout.depths
        return sample

    right = rows.Layout.sample_rows
    patch.setattr(rows.Layout, "sample_rows", flat)


def penalties_forget_the_draft(patch: pytest.MonkeyPatch) -> None:
    def forgetful(layout: rows.Layout) -> Any:
        sample = right(layout)
        sample.path_rows, sample.path_tokens = sample.path_rows[:0], sample.path_tokens[:0]
        return sample

    right = rows.Layout.sample_rows
    patch.setattr(rows.Layout, "sample_rows", forgetful)


@pytest.mark.parametrize(
    "fault",
    [
        first_child_is_always_accepted,
        a_node_is_accepted_whatever_its_parent,
        nothing_is_accepted,
        the_bonus_token_is_lost,
        accepted_rows_stay_where_they_are,
        siblings_see_each_other,
        noise_is_that_of_the_root_at_every_node,
        penalties_forget_the_draft,
    ],
)
def test_a_planted_fault_is_noticed(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_happened(bench("llama8").run(TREE))
    fault(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):  # ValueError: the engine itself stumbles
        assert_happened(bench("llama8").run(TREE))
