"""Bias, masks and penalties: each row by its own history."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwing.core import SamplingParams
from draftwing.engine.processors import History, SampleRows, SamplerState, edit, process
from draftwing.testing import naive_sampling as naive
from tests.unit.engine.cases import WIDTHS, Sequence, logits_of, one_row, sequences, verify_rows


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_row_as_if_alone(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from(WIDTHS))
    batch = data.draw(st.lists(sequences(width), min_size=1, max_size=3))
    rows = verify_rows(batch)
    logits = data.draw(logits_of(len(rows), width))
    got = process(logits, rows).numpy()
    row = 0
    for sequence in batch:
        for output in sequence.histories():
            expected = naive.processed(logits[row].numpy(), sequence.params, sequence.prompt, output, sequence.end_ids)
            np.testing.assert_array_equal(got[row], expected)
            row += 1


def test_logits_stay_as_they_are() -> None:
    logits = torch.zeros(1, 8)
    assert edit(logits, one_row(SamplingParams(temperature=0.5))) is logits
    edited = edit(logits, one_row(SamplingParams(logit_bias={3: 2.0})))
    assert edited[0, 3] == 2
    assert not logits.any()
    assert edit(logits.bfloat16(), one_row(SamplingParams(logit_bias={3: 2.0}))).dtype == torch.float32


def test_history_counts_output_only() -> None:
    history = History.of_prompt([7, 2, 2])
    history.append([2, 9])
    history.append([])
    history.append([9, 9, 1])
    assert history.ids.tolist() == [1, 2, 7, 9]
    assert history.counts.tolist() == [1, 1, 0, 3]


def test_history_is_kept_only_for_penalties() -> None:
    assert SamplerState.create(SamplingParams(), [1, 2]).history is None
    assert SamplerState.create(SamplingParams(presence_penalty=0.1), [1, 2]).history is not None


def test_branches_of_a_tree_see_their_own_ancestors() -> None:
    # Two children of the root (rows 1 and 2: tokens 4 and 5), and a grandchild below each (rows 3 and 4: token 4).
    state = SamplerState.create(SamplingParams(frequency_penalty=1.0), [0])
    rows = SampleRows(
        [state],
        np.zeros(5, dtype=np.int64),
        np.array([1, 2, 2, 3, 3]),
        np.array([1, 2, 3, 3, 4, 4]),
        np.array([4, 5, 4, 4, 5, 4]),
    )
    values = process(torch.zeros(5, 8), rows)
    assert values[:, 4].tolist() == [0, -1, 0, -2, -1]
    assert values[:, 5].tolist() == [0, 0, -1, 0, -1]
    assert (values != 0).sum() == 5


def test_repetition_penalty_pushes_down_on_either_side_of_zero() -> None:
    sequence = Sequence(SamplingParams(repetition_penalty=2.0), 0, [0], [1], [], [])
    values = process(torch.tensor([[-3.0, 3.0, 3.0]]), verify_rows([sequence]))
    assert values.tolist() == [[-6.0, 1.5, 3.0]]


def test_ends_are_masked_until_min_tokens_on_each_row() -> None:
    # One output token so far: rows choose output tokens 1, 2 and 3 (counted from 0); 3 is the first that may end.
    sequence = Sequence(SamplingParams(min_tokens=3), 0, [0], [1], [2, 2], [4, 99])
    values = process(torch.zeros(3, 8), verify_rows([sequence]))
    assert values.isneginf().tolist() == [[i == 4 for i in range(8)]] * 2 + [[False] * 8]
