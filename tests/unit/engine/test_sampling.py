"""The chosen token is exactly that of the whole row with all its noise, whatever else is in the verify."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwing.core import SamplingParams
from draftwing.engine.processors import SampleRows, SamplerState
from draftwing.engine.sampling import Choice, choose, probabilities
from draftwing.testing import naive_sampling as naive
from tests.unit.engine.cases import WIDTHS, Sequence, logits_of, one_row, sequences, verify_rows


def assert_as_naive(choice: Choice, logits: torch.Tensor, batch: list[Sequence]) -> None:
    row = 0
    for sequence in batch:
        for output in sequence.histories():
            expected = naive.choose(
                logits[row].float().numpy(),
                sequence.params,
                sequence.prompt,
                output,
                choice=sequence.choice,
                end_ids=sequence.end_ids,
            )
            assert choice.finite[row] == (expected is not None)
            if expected is not None:
                assert choice.tokens[row] == expected.token
            row += 1


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_as_the_whole_row_with_all_its_noise(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from(WIDTHS))
    batch = data.draw(st.lists(sequences(width), min_size=1, max_size=3))
    rows = verify_rows(batch)
    logits = data.draw(logits_of(len(rows), width))
    assert_as_naive(choose(logits, rows), logits, batch)


@pytest.mark.parametrize("width", [50_257, 151_936, 262_144])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=2.0, seed=3),
        SamplingParams(temperature=1e-4, logit_bias={9: -100.0}),
        SamplingParams(top_p=0.9, frequency_penalty=0.5),
        SamplingParams(temperature=1.5, top_k=5000, min_p=1e-6),
    ],
)
def test_wide_rows(width: int, params: SamplingParams) -> None:
    batch = [Sequence(params, 1, [1, 2, 3], [4, 5], [6], [0])]
    rows = verify_rows(batch)
    logits = torch.randn(len(rows), width, generator=torch.Generator().manual_seed(width)) * 3
    assert_as_naive(choose(logits, rows), logits, batch)


def test_bfloat16() -> None:
    # Eight bits of mantissa: ties everywhere.
    logits = (torch.randn(4, 8192, generator=torch.Generator().manual_seed(1)) * 3).bfloat16()
    for params in (SamplingParams(temperature=0), SamplingParams(temperature=0.9, top_k=40), SamplingParams(top_p=0.8)):
        batch = [Sequence(params, 0, [1], [2], [3, 4, 5], [])]
        assert_as_naive(choose(logits, verify_rows(batch)), logits, batch)


@pytest.mark.parametrize("width", [64, 8192, 5003])
def test_logits_of_any_layout(width: int) -> None:
    rows = verify_rows([Sequence(SamplingParams(top_p=0.9, seed=4), 0, [1], [], [2, 3], [])])
    columns = torch.randn(width, 3, generator=torch.Generator().manual_seed(2)) * 3
    expected = choose(columns.T.contiguous(), rows).tokens
    assert (choose(columns.T, rows).tokens == expected).all()
    assert (choose(columns.T.clone().requires_grad_(), rows).tokens == expected).all()


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_row_chooses_the_same_in_any_company(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from([64, 6144]))
    batch = data.draw(st.lists(sequences(width), min_size=2, max_size=4))
    rows = verify_rows(batch)
    logits = data.draw(logits_of(len(rows), width))
    together = choose(logits, rows)
    for row in range(len(rows)):
        alone = choose(logits[row : row + 1], rows.take(np.array([row])))
        assert (alone.finite[0], alone.tokens[0]) == (together.finite[row], together.tokens[row])


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(top_p=0.9), SamplingParams(top_k=3)])
@pytest.mark.parametrize("width", [16, 8192])
def test_what_is_not_finite_fails_its_row_alone(params: SamplingParams, width: int) -> None:
    states = [SamplerState.create(params, [0]), SamplerState.create(SamplingParams(seed=1), [0])]
    rows = SampleRows(states, np.array([0, 1] * 3), np.arange(1, 7))
    logits = torch.randn(6, width, generator=torch.Generator().manual_seed(0))
    clean = choose(logits, rows)
    assert clean.finite.all()
    logits[0, 5], logits[3, 6], logits[4] = torch.nan, torch.inf, -torch.inf
    got = choose(logits, rows)
    assert got.finite.tolist() == [False, True, True, False, False, True]
    assert (got.tokens == clean.tokens)[got.finite].all()


def test_masks_that_leave_nothing_fail_the_row() -> None:
    logits = torch.full((1, 8), -torch.inf)
    logits[0, 2] = 1
    batch = [Sequence(SamplingParams(min_tokens=1), 0, [0], [], [], [2])]
    assert not choose(logits, verify_rows(batch)).finite[0]


@pytest.mark.parametrize("width", [16, 8192])
def test_equal_scores_go_to_the_lowest_id(width: int) -> None:
    logits = torch.full((1, width), 1e9)  # where float32 has steps of 64, noise is lost
    logits[0, :5] = 0
    assert choose(logits, one_row(SamplingParams())).tokens[0] == 5


def test_a_bias_that_leaves_one_token() -> None:
    bias = {token: -100.0 for token in range(64) if token != 17}
    for seed in range(20):
        assert choose(torch.randn(1, 64), one_row(SamplingParams(logit_bias=bias, seed=seed))).tokens[0] == 17
        assert choose(torch.randn(1, 64), one_row(SamplingParams(logit_bias={5: 100.0}, seed=seed))).tokens[0] == 5


def test_no_rows() -> None:
    assert len(choose(torch.zeros(0, 8), SampleRows([], *[np.empty(0, dtype=np.int64)] * 2)).tokens) == 0


def test_seed_choice_and_position_each_change_the_draw() -> None:
    logits = torch.zeros(1, 100_000)

    def token(seed: int, choice: int, position: int) -> int:
        state = SamplerState.create(SamplingParams(seed=seed), [0], choice=choice)
        rows = SampleRows([state], np.zeros(1, dtype=np.int64), np.array([position]))
        return int(choose(logits, rows).tokens[0])

    assert token(1, 0, 1) == token(1, 0, 1)
    assert len({token(1, 0, 1), token(2, 0, 1), token(1, 1, 1), token(1, 0, 2)}) == 4


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_probabilities(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from([5, 64, 4097]))
    sequence = data.draw(sequences(width))
    rows = verify_rows([sequence])
    logits = data.draw(logits_of(len(rows), width))
    probs = probabilities(logits, rows).double().numpy()
    for row, output in enumerate(sequence.histories()):
        values = naive.processed(logits[row].numpy(), sequence.params, sequence.prompt, output, sequence.end_ids)
        if not np.isfinite(values.max()):
            assert np.isnan(probs[row]).all()
        else:
            np.testing.assert_allclose(probs[row], naive.probabilities(values, sequence.params), rtol=1e-4, atol=1e-9)
