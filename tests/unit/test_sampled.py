"""A drafter's sampler counts a sequence's output as the target's does: each token once, however often it drafts."""

from __future__ import annotations

import numpy as np
import torch

from draftwing.core import SamplingParams
from draftwing.drafters.sampled import Sampled
from draftwing.engine.processors import SampleRows, SamplerState, process
from draftwing.testing.drafters import View

PROMPT, OUTPUT, EOS = [1, 2, 3], [5, 5, 6, 5], 7
PARAMS = SamplingParams(temperature=0.8, frequency_penalty=1.0, repetition_penalty=1.2, min_tokens=5, max_tokens=9)


def processed(state: SamplerState, length: int) -> list[float]:
    rows = SampleRows([state], np.array([0]), np.array([length]))
    scores: list[float] = process(torch.linspace(-1, 1, 9)[None].clone(), rows)[0].tolist()
    return scores


def test_output_counts_once() -> None:
    view = View("a", list(PROMPT), len(PROMPT), PARAMS)
    sampled = Sampled.of(view, (EOS,))
    target = SamplerState.create(PARAMS, PROMPT, choice=0, end_ids=(EOS,))
    for token in OUTPUT:
        for _ in range(2):  # a draft that is refused, or asked for again
            sampled.follow(view)
        view.tokens.append(token)
        target.commit([token])
        assert processed(sampled.follow(view), len(view.tokens)) == processed(target, len(view.tokens))
    assert processed(sampled.state, len(view.tokens))[EOS] == -torch.inf
