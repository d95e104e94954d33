"""A drafter picks children under the target's noise: given the target's own logits, the target's token first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from draftwing.core import SamplingParams
from draftwing.drafters.children import HASHED, children
from draftwing.engine.noise import gumbel
from draftwing.engine.processors import SampleRows, SamplerState, process
from draftwing.engine.sampling import choose

SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.3, "seed": 6, "repetition_penalty": 1.3},
    {"temperature": 0.8, "seed": 7, "logit_bias": {3: 4.0}, "presence_penalty": 0.5},
]


def rows(settings: dict[str, object], count: int) -> SampleRows:
    state = SamplerState.create(SamplingParams(**settings), [1, 2, 3], choice=1)  # type: ignore[arg-type]
    return SampleRows([state], np.zeros(count, dtype=np.int64), np.arange(3, 3 + count))


def noise(settings: dict[str, object], count: int, vocab: int) -> torch.Tensor:
    """[count, vocab]"""
    key = torch.full((count,), rows(settings, 1).sequences[0].key, dtype=torch.int64)
    return gumbel(key, torch.arange(3, 3 + count), torch.arange(vocab).expand(count, vocab))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("vocab", [7, 300])
def test_the_first_child_of_the_target_itself_is_its_token(settings: dict[str, object], vocab: int) -> None:
    logits = torch.randn(40, vocab, generator=torch.Generator().manual_seed(1)) * 2
    found = children(logits, rows(settings, 40), 3).tokens[:, 0]
    chosen = choose(logits, rows(settings, 40)).tokens
    best = process(logits, rows(settings, 40)).topk(min(HASHED, vocab), dim=-1).indices.numpy()
    hashed = (best == chosen[:, None]).any(-1)
    assert hashed.mean() > 0.7
    assert (found == chosen)[hashed].all()


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_children_are_distinct_and_confidences_are_shares_of_their_scores(temperature: float) -> None:
    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(2))
    found = children(logits, rows({"temperature": temperature, "seed": 1}, 20), 4)
    scores = logits
    if temperature:
        scores = logits / temperature + noise({"temperature": temperature, "seed": 1}, 20, 50)
    expected = scores.softmax(-1).gather(1, torch.from_numpy(found.tokens)).numpy()
    np.testing.assert_allclose(found.confidences, expected, rtol=1e-4)
    assert (np.diff(found.confidences) <= 0).all()
    assert all(len(set(row)) == 4 for row in found.tokens.tolist())


def test_a_confidence_tells_whether_a_target_that_nearly_agrees_picks_the_same() -> None:
    """Better than the token's probability does: accepted and refused tokens are told apart more often."""
    draw = torch.Generator().manual_seed(3)
    logits = torch.randn(2000, 50, generator=draw) * 2
    settings: dict[str, object] = {"temperature": 1.0, "seed": 4}
    found = children(logits, rows(settings, 2000), 1)
    target = logits + torch.randn(2000, 50, generator=draw)
    same = found.tokens[:, 0] == choose(target, rows(settings, 2000)).tokens
    q = logits.softmax(-1).gather(1, torch.from_numpy(found.tokens))[:, 0].numpy()

    def told_apart(x: npt.NDArray[np.float32]) -> float:
        return float((x[same][:, None] > x[~same]).mean())

    assert 0.4 < same.mean() < 0.8
    assert told_apart(found.confidences[:, 0]) > told_apart(q) + 0.05


def test_noise_changes_the_children_with_the_seed() -> None:
    logits = torch.zeros(30, 100)
    one, two = (children(logits, rows({"temperature": 1.0, "seed": s}, 30), 1).tokens for s in (1, 2))
    assert (one != two).mean() > 0.8


def test_no_more_children_than_tokens() -> None:
    assert children(torch.randn(2, 3), rows({"temperature": 0.0}, 2), 8).tokens.shape == (2, 3)


@pytest.mark.parametrize("temperature", [0.0, 1e-4, 0.01, 1.0])
def test_what_may_be_drafted_has_a_share_and_what_is_masked_has_none(temperature: float) -> None:
    logits = torch.tensor([[9.0, 1.0, -200.0] + [-torch.inf] * 5])
    found = children(logits, rows({"temperature": temperature, "seed": 3}, 1), 4)
    assert found.tokens[0, :3].tolist() == [0, 1, 2]
    assert (found.confidences[0, :3] > 0).all()
    assert found.confidences[0, 3] == 0


@pytest.mark.parametrize("kinds", [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
def test_shares_do_not_depend_on_the_company(kinds: tuple[float, float]) -> None:
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(4)) * 2
    states = [SamplerState.create(SamplingParams(temperature=t, seed=5), [1, 2, 3], choice=1) for t in kinds]
    both = children(logits, SampleRows(states, np.arange(2), np.array([3, 4])), 3)
    for row, state in enumerate(states):
        alone = children(
            logits[row : row + 1], SampleRows([state], np.zeros(1, dtype=np.int64), np.array([3 + row])), 3
        )
        assert (both.tokens[row] == alone.tokens[0]).all()
        assert both.confidences[row] == pytest.approx(alone.confidences[0], rel=1e-6)
