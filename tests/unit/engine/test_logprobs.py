"""Log-probabilities of the raw model, best alternatives first."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftwing.engine.logprobs import logprobs


@pytest.mark.parametrize("width", [3, 64, 5003, 8192])
@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_against_log_softmax(width: int, count: int) -> None:
    logits = torch.randn(4, width, generator=torch.Generator().manual_seed(width)) * 3
    expected = logits.double().log_softmax(-1)
    got = logprobs(logits, np.array([3, 1]), [2, 0], count)
    assert [entry.token for entry in got] == [2, 0]
    for entry, row in zip(got, expected[[3, 1]], strict=True):
        assert entry.logprob == pytest.approx(row[entry.token].item(), abs=1e-5)
        best = row.topk(min(count, width))
        assert [i for i, _ in entry.alternatives] == best.indices.tolist()
        assert [p for _, p in entry.alternatives] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("width", [16, 8192])
def test_equal_alternatives_by_id_and_none_that_is_ruled_out(width: int) -> None:
    logits = torch.full((1, width), -torch.inf, dtype=torch.bfloat16)
    logits[0, [2, 5, 7, 11]] = torch.tensor([1.0, 3.0, 3.0, 1.0], dtype=torch.bfloat16)
    [entry] = logprobs(logits, np.array([0]), [7], 3)
    assert [i for i, _ in entry.alternatives] == [5, 7, 2]
    [entry] = logprobs(logits, np.array([0]), [7], 9)
    assert [i for i, _ in entry.alternatives] == [5, 7, 2, 11]
    assert sum(np.exp(p) for _, p in entry.alternatives) == pytest.approx(1)


def test_no_tokens() -> None:
    assert logprobs(torch.zeros(2, 8), np.empty(0, dtype=np.int64), [], 3) == []
