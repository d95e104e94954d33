"""Rule R1 across features on the mock target, and proof that the matrix notices faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftwing.engine import commit, rows, scheduler, step
from draftwing.engine.batch import SequenceRows, chain_parents
from draftwing.engine.logprobs import logprobs
from draftwing.engine.processors import SamplerState
from draftwing.engine.selection import Peaks
from draftwing.engine.text import TextStream
from draftwing.testing.feature_matrix import Cell, pairwise_cells, random_cells, run_cell
from draftwing.testing.mock_target import MockTarget

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


def penalties_forget_the_draft(patch: pytest.MonkeyPatch) -> None:
    right = rows.Layout.sample_rows
    nothing = np.empty(0, dtype=np.int64)
    patch.setattr(
        rows.Layout, "sample_rows", lambda layout: replace(right(layout), path_rows=nothing, path_tokens=nothing)
    )


def rows_take_the_next_sequences_parameters(patch: pytest.MonkeyPatch) -> None:
    right = rows.Layout.sample_rows

    def mixed_up(layout: Any) -> Any:
        sample = right(layout)
        sample.seq_of_row = (sample.seq_of_row + 1) % len(sample.sequences)
        return sample

    patch.setattr(rows.Layout, "sample_rows", mixed_up)


def accepted_rows_stay_where_they_were(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MockTarget, "move", lambda *_: None)


def siblings_see_each_other(patch: pytest.MonkeyPatch) -> None:
    right = MockTarget.forward

    def in_a_row(target: MockTarget, sequences: list[SequenceRows]) -> Any:
        return right(target, [replace(s, parents=chain_parents(len(s.tokens))) for s in sequences])

    patch.setattr(MockTarget, "forward", in_a_row)


def blocks_are_found_by_their_place(patch: pytest.MonkeyPatch) -> None:
    def by_place(chain: list[bytes], salt: str, tokens: list[int], block_tokens: int, blocks: int) -> list[bytes]:
        chain += [bytes([place]) for place in range(len(chain), blocks)]
        return chain

    patch.setattr(scheduler, "extend_chain", by_place)


def a_preempted_sequence_says_its_last_token_again(patch: pytest.MonkeyPatch) -> None:
    right = scheduler.Scheduler._preempt

    def forgetful(mine: Any, youngest: Any) -> None:
        right(mine, youngest)
        if youngest.output_len > 1:
            youngest.tokens.pop()

    patch.setattr(scheduler.Scheduler, "_preempt", forgetful)


def stop_strings_end_with_their_step(patch: pytest.MonkeyPatch) -> None:
    right = TextStream.take

    def hasty(stream: TextStream) -> str:
        held, stream._held = stream._held, ""
        return right(stream) + held

    patch.setattr(TextStream, "take", hasty)


def ties_go_to_the_highest_id(patch: pytest.MonkeyPatch) -> None:
    def last(peaks: Peaks) -> Any:
        values = peaks.values()
        return values.shape[1] - 1 - values.flip(-1).argmax(-1)

    patch.setattr(Peaks, "argmax", last)


FAULTS: list[tuple[Patch, Cell]] = [
    (an_end_inside_a_run_is_overlooked, replace(PLAIN, ending="eos")),
    (logprobs_are_those_of_the_root, replace(PLAIN, logprobs=3)),
    (resumed_positions_count_from_zero, replace(PLAIN, temperature=0.8, resume=True)),
    (every_choice_draws_the_same_noise, replace(PLAIN, temperature=0.8, n=3)),
    (min_tokens_is_forgotten_in_drafts, replace(PLAIN, min_tokens=True)),
    (penalties_forget_the_draft, replace(PLAIN, penalties=True)),
    (rows_take_the_next_sequences_parameters, replace(PLAIN, temperature=0.8, batch="mixed")),
    (accepted_rows_stay_where_they_were, replace(PLAIN, tree=True)),
    (siblings_see_each_other, replace(PLAIN, tree=True)),
    (blocks_are_found_by_their_place, replace(PLAIN, batch="mixed")),
    (a_preempted_sequence_says_its_last_token_again, replace(PLAIN, batch="twins", preempt=True)),
    (stop_strings_end_with_their_step, replace(PLAIN, ending="stop")),
    (ties_go_to_the_highest_id, replace(PLAIN, ties=True)),
]


@pytest.mark.parametrize(("fault", "cell"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_planted_fault_is_noticed(fault: Patch, cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    run_cell(cell)
    fault(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        run_cell(cell)
    assert "never met" not in str(caught.value)
