"""The noise samples the distribution, and draws at different positions, seeds and choices are independent.

Seeds are fixed, so the outcome is; FALSE_ALARM is the chance that a right sampler would fail a test with other seeds.
Each test is shown to fail on a sampler with the fault it is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from draftwing.core import IntArray, SamplingParams
from draftwing.engine import processors, sampling
from draftwing.engine.noise import request_key, streams
from draftwing.engine.processors import SampleRows, SamplerState
from draftwing.engine.sampling import choose, probabilities

FALSE_ALARM = 1e-4
DRAWS = 20_000
VOCAB = 12
LOGITS = torch.linspace(0, 2, VOCAB).roll(5)

Streams = Callable[[IntArray, IntArray], IntArray]


def sample(params: SamplingParams, requests: list[tuple[int, int]], positions: IntArray) -> IntArray:
    """Tokens [requests, positions], with one seed and choice a request."""
    states = [SamplerState.create(replace(params, seed=seed), [0], choice=choice) for seed, choice in requests]
    owner = np.repeat(np.arange(len(requests)), len(positions))
    rows = SampleRows(states, owner, np.tile(positions, len(requests)))
    chosen = choose(LOGITS.expand(len(owner), -1).contiguous(), rows)
    return chosen.tokens.reshape(len(requests), len(positions))


def fits(tokens: IntArray, params: SamplingParams) -> bool:
    """Chi-square of counts against the distribution."""
    state = SamplerState.create(params, [0])
    row = SampleRows([state], np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64))
    p = probabilities(LOGITS[None], row)[0].double().numpy()
    counts = np.bincount(tokens.flatten(), minlength=VOCAB)
    live = p > 0
    assert live.sum() > 2
    expected = p[live] / p.sum() * counts.sum()
    return not counts[~live].any() and bool(stats.chisquare(counts[live], expected).pvalue > FALSE_ALARM)


def independent(one: IntArray, other: IntArray) -> bool:
    """Chi-square of the table of pairs, over classes of three tokens."""
    table = np.zeros((VOCAB // 3, VOCAB // 3))
    np.add.at(table, (one.flatten() // 3, other.flatten() // 3), 1)
    return bool(stats.chi2_contingency(table).pvalue > FALSE_ALARM)


@contextmanager
def faulty(name: str, fault: Callable[..., object]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr({"streams": sampling, "request_key": processors}[name], name, fault)
        yield


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=1.7, top_k=7),
        SamplingParams(top_p=0.7),
        SamplingParams(temperature=0.8, min_p=0.2, logit_bias={8: 1.0}),
    ],
    ids=["plain", "cold", "top_k", "top_p", "min_p and bias"],
)
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    tokens = sample(params, [(11, 0)], np.arange(1, DRAWS + 1))
    assert fits(tokens, params)
    # 5 % more of the best token is seen
    nudged = np.where(np.random.default_rng(0).random(tokens.shape) < 0.05, int(LOGITS.argmax()), tokens)
    assert not fits(nudged, params)


def test_draws_of_many_seeds_follow_the_distribution() -> None:
    params = SamplingParams()
    requests = [(seed, choice) for seed in range(1000) for choice in range(4)]
    tokens = sample(params, requests, np.array([1, 2, 3, 500]))
    assert fits(tokens, params)
    with faulty("streams", lambda keys, positions: streams(keys * 0, positions)):
        assert not fits(sample(params, requests, np.array([1, 2, 3, 500])), params)


@pytest.mark.parametrize("distance", [1, 2, 64])
def test_positions_are_independent(distance: int) -> None:
    def pairs_independent() -> bool:
        tokens = sample(SamplingParams(), [(5, 0)], np.arange(1, DRAWS + 1))[0]
        return independent(tokens[:-distance], tokens[distance:])

    assert pairs_independent()
    with faulty("streams", lambda keys, positions: streams(keys, positions // (distance + 1))):
        assert not pairs_independent()


def test_seeds_are_independent() -> None:
    def pairs_independent() -> bool:
        tokens = sample(SamplingParams(), [(seed, 0) for seed in range(200)], np.arange(1, 101))
        return independent(tokens[:-1], tokens[1:])

    assert pairs_independent()
    with faulty("request_key", lambda seed, choice: request_key(seed // 2, choice)):
        assert not pairs_independent()


def test_choices_are_independent() -> None:
    def pairs_independent(seeds: int = 50, choices: int = 4) -> bool:
        requests = [(seed, choice) for seed in range(seeds) for choice in range(choices)]
        tokens = sample(SamplingParams(), requests, np.arange(1, 101)).reshape(seeds, choices, -1)
        return independent(tokens[:, :-1], tokens[:, 1:])

    assert pairs_independent()
    with faulty("request_key", lambda seed, choice: request_key(seed, choice // 2)):
        assert not pairs_independent()


def test_seed_and_position_do_not_stand_in_for_each_other() -> None:
    """The token of seed s at position t + 1 says nothing about seed s + 1 at position t."""

    def pairs_independent() -> bool:
        tokens = sample(SamplingParams(), [(seed, 0) for seed in range(200)], np.arange(1, 101))
        return independent(tokens[:-1, 1:], tokens[1:, :-1])

    assert pairs_independent()
    with faulty("request_key", lambda seed, choice: seed), faulty("streams", lambda keys, positions: keys + positions):
        assert not pairs_independent()
