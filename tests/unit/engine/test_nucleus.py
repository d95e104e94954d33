"""top_p without a sort gives what the sorted row gives, at its edge too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftwing.core import FloatArray, SamplingParams
from draftwing.engine import nucleus
from draftwing.engine.processors import SampleRows, SamplerState
from draftwing.engine.sampling import choose, probabilities
from draftwing.testing import naive_sampling as naive

ROWS = 12


def a_verify(params: SamplingParams) -> SampleRows:
    return SampleRows([SamplerState.create(params, [0])], np.zeros(ROWS, dtype=np.int64), np.arange(1, ROWS + 1))


def logits_of(width: int, *, scale: float, grid: float = 0.0) -> torch.Tensor:
    values = torch.randn(ROWS, width, generator=torch.Generator().manual_seed(width)) * scale
    return (values / grid).round() * grid if grid else values


def plain(logits: torch.Tensor, params: SamplingParams) -> list[int]:
    """The naive sampler's token of each row."""
    chosen = [naive.choose(row.numpy(), params, [0] * (at + 1), []) for at, row in enumerate(logits)]
    return [choice.token for choice in chosen if choice is not None]


SETTINGS = [
    SamplingParams(temperature=1.5, top_p=0.8),
    SamplingParams(temperature=0.7, top_p=0.95, seed=3),
    SamplingParams(temperature=3.0, top_p=0.1, seed=4),
    SamplingParams(top_p=0.5, top_k=700, seed=5),
    SamplingParams(temperature=1.5, top_p=0.9, min_p=1e-5, seed=6),
]


@pytest.mark.parametrize("params", SETTINGS)
@pytest.mark.parametrize(("scale", "grid"), [(3.0, 0.0), (0.1, 0.0), (2.0, 1.0)])
def test_as_the_sorted_row(params: SamplingParams, scale: float, grid: float) -> None:
    logits = logits_of(20_000, scale=scale, grid=grid)
    assert choose(logits, a_verify(params)).tokens.tolist() == plain(logits, params)


@pytest.mark.parametrize("params", SETTINGS)
def test_the_quick_answer_is_the_exact_one(params: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = logits_of(6144, scale=2.0)
    quick, kept = choose(logits, a_verify(params)), probabilities(logits, a_verify(params)) > 0
    asked, exact = [], nucleus._last_kept

    def watched(values: FloatArray, top_p: float) -> int:
        asked.append(top_p)
        return exact(values, top_p)

    monkeypatch.setattr(nucleus, "_DOUBT", 1e9)
    monkeypatch.setattr(nucleus, "_last_kept", watched)
    assert choose(logits, a_verify(params)).tokens.tolist() == quick.tokens.tolist()
    assert torch.equal(probabilities(logits, a_verify(params)) > 0, kept)
    assert len(asked) >= 2 * ROWS


@pytest.mark.parametrize("width", [10, 640, 8192])
@pytest.mark.parametrize("top_p", [0.1, 0.3, 0.7, 0.8])
def test_equal_shares_that_reach_p_exactly(width: int, top_p: float) -> None:
    """Whether ten tenths' first three weigh 0.3 is a matter of rounding, and of the definition's alone."""
    flat = torch.zeros(ROWS, width)
    values = np.zeros(width, dtype=np.float32)
    for seed in range(6):
        params = SamplingParams(top_p=top_p, seed=seed)
        assert choose(flat, a_verify(params)).tokens.tolist() == plain(flat, params)
        kept = probabilities(flat, a_verify(params))[0] > 0
        assert int(kept.sum()) == len(naive.kept(values, params).tokens)


def test_rows_with_and_without_it_in_one_verify() -> None:
    logits = logits_of(6144, scale=1.0)
    settings = [SamplingParams(temperature=2.0, seed=8, top_p=p, top_k=k) for p in (1.0, 0.4) for k in (0, 9)]
    states = [SamplerState.create(params, [0]) for params in settings]
    owner = np.arange(ROWS) % len(states)
    rows = SampleRows(states, owner, np.arange(1, ROWS + 1))
    mixed = choose(logits, rows).tokens
    before = probabilities(logits, rows)
    for index, params in enumerate(settings):
        mine = owner == index
        assert mixed[mine].tolist() == choose(logits, a_verify(params)).tokens[mine].tolist()
        alone = probabilities(logits, a_verify(params))[torch.from_numpy(mine)]
        assert torch.equal(before[torch.from_numpy(mine)], alone)


def test_logits_are_not_written() -> None:
    logits = logits_of(500, scale=1.0)
    copy = logits.clone()
    params = SamplingParams(top_p=0.5)
    choose(logits, a_verify(params))
    probabilities(logits, a_verify(params))
    assert torch.equal(logits, copy)
