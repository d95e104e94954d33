"""min_p, top_k and top_p keep what the rule says, in its order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from draftwing.core import SamplingParams
from draftwing.engine.cuts import find_cut
from draftwing.engine.nucleus import Nucleus
from draftwing.engine.processors import process
from draftwing.engine.selection import Peaks
from draftwing.testing import naive_sampling as naive
from tests.unit.engine.cases import WIDTHS, logits_of, one_row, sampling_params


def kept(logits: torch.Tensor, params: SamplingParams) -> list[int]:
    """Ids kept of one row, ascending."""
    values = process(logits[None], one_row(params))
    peaks = Peaks.of(values)
    cut = find_cut(peaks, one_row(params))
    if params.top_p < 1:
        cut = Nucleus.of(peaks, cut, torch.tensor([params.top_p], dtype=torch.float64)).full()
    return torch.nonzero((values if cut is None else cut.apply(values))[0] > -torch.inf).flatten().tolist()


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_the_rule_written_slowly(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from(WIDTHS))
    params = data.draw(sampling_params(width))
    logits = data.draw(logits_of(1, width))[0]
    values = process(logits[None], one_row(params))[0].numpy()
    assume(np.isfinite(values.max()))
    expected = naive.kept(values, params)
    assert kept(logits, params) == sorted(expected.tokens.tolist())


@pytest.mark.parametrize(
    ("logits", "settings_", "expected"),
    [
        ([1, 3, 3, 3, 0], {"top_k": 2}, [1, 2]),
        ([3, 3, 1, 3, 3], {"top_k": 3}, [0, 1, 3]),
        ([0, 0, 0, 0], {"top_p": 0.5}, [0, 1]),
        ([0, 1, 1, 1], {"top_p": 1e-9}, [1]),
        ([0, 2, 2, 1], {"min_p": 1.0}, [1, 2]),
        ([0, 2, 2, 1], {"top_k": 9}, [0, 1, 2, 3]),
        # top_p is a share of what top_k left: of {2, 1}, the first weighs 0.73; of all four it weighs 0.64.
        ([2, 1, 0, -1], {"top_k": 2, "top_p": 0.7}, [0]),
        ([2, 1, 0, -1], {"top_p": 0.7}, [0, 1]),
        # and of what min_p left
        ([2, 1, 0, -1], {"min_p": 0.3, "top_p": 0.7}, [0]),
    ],
)
def test_order_and_ties(logits: list[float], settings_: dict[str, float], expected: list[int]) -> None:
    assert kept(torch.tensor(logits, dtype=torch.float32), SamplingParams(**settings_)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [64, 16_384])  # sums of their shares are exact
def test_a_flat_row(width: int) -> None:
    flat = torch.zeros(width)
    assert kept(flat, SamplingParams(top_k=50)) == list(range(50))
    assert kept(flat, SamplingParams(top_p=0.5)) == list(range(width // 2))


def test_min_p_is_exact_where_float32_is_coarse() -> None:
    # At a temperature of 1e-4 values lie 1/32 apart, and the threshold between two of them.
    logits = (300_000 - torch.arange(200) / 32) * 1e-4
    values = process(logits[None], one_row(SamplingParams(temperature=1e-4)))[0].double()
    for min_p in (0.05, 0.3, 0.7):
        expected = torch.nonzero(values >= values[0] + np.log(min_p)).flatten().tolist()
        assert kept(logits, SamplingParams(temperature=1e-4, min_p=min_p)) == expected


def test_no_cut_is_no_work() -> None:
    assert find_cut(Peaks.of(torch.zeros(1, 8)), one_row(SamplingParams(top_k=8))) is None
