"""Traces from a running engine: plain decoding's text, and the drafter's own proposal at every position of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftwing.core import DraftShape, Request, SamplingParams, StepPlan
from draftwing.drafters.base import NullController
from draftwing.drafters.ngram import NgramDrafter
from draftwing.engine.step import Engine
from draftwing.errors import ConfigError
from draftwing.policy.modes import OffPolicy
from draftwing.testing.drafters import View
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.run_engine import assert_idle, make_engine, run_to_end
from draftwing_tuner.collecting import CHAIN, collect, collect_all, largest
from draftwing_tuner.trace import read_trace

PARAMS = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
PROMPTS = [[1, 2, 3, 1, 2], [4, 4, 5], [6, 1, 2], [3, 3, 3, 3], [2, 9]]


def engine_of(blocks: int = 256, sequences: int = 2) -> Engine:
    runner = MockTarget(MockBehaviour(vocab_size=12, order=1, sharpness=8.0), slots=blocks * 4)
    return make_engine(runner, drafter=NgramDrafter(), blocks=blocks, sequences=sequences)


def requests() -> list[Request]:
    return [Request(f"{i}", prompt, PARAMS) for i, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("blocks", [256, 12])  # with room for all, and with preemptions
def test_text_is_plain_and_every_proposal_is_the_drafter_s_own(blocks: int) -> None:
    engine = engine_of(blocks)
    plain = run_to_end(engine_of(), requests())
    answers, proposals = collect(engine, "lookup", requests())
    assert isinstance(engine.policy, OffPolicy)
    assert_idle(engine)
    assert blocks == 256 or engine.counters.preemptions > 0
    drafter, shape = NgramDrafter(), largest(NgramDrafter.traits)
    nodes = 0
    for answer, own, prompt in zip(answers, proposals, PROMPTS, strict=True):
        assert list(answer.output) == plain[answer.id].tokens
        assert answer.prompt == tuple(prompt)
        for position in range(1, len(answer.output)):
            view = View(f"{answer.id}/{position}", [*prompt, *answer.output[:position]], len(prompt))
            (expected,) = drafter.propose([view], StepPlan("", (shape,)), NullController())
            stored = own.at(position)
            if blocks == 256:
                assert sorted(stored.tokens.tolist()) == sorted(expected.tokens.tolist())
            nodes += len(stored)
        assert len(own.at(0)) == 0
    assert nodes > 100


def test_a_stopped_collection_goes_on(tmp_path: Path) -> None:
    engine = engine_of()
    whole = collect_all(engine_of(), "lookup", PROMPTS, PARAMS, tmp_path / "whole", {"model": "m"})
    first = collect_all(
        engine, "lookup", PROMPTS, PARAMS, tmp_path / "t", {"model": "m"}, keep_going=lambda done: False
    )
    assert len(first.requests) == 2
    steps = engine.counters.steps
    again = collect_all(
        engine, "lookup", PROMPTS, PARAMS, tmp_path / "t", {"model": "m"}, keep_going=lambda done: False
    )
    assert [request.id for request in again.requests] == ["0", "1"]
    assert engine.counters.steps == steps
    rest = collect_all(engine, "lookup", PROMPTS, PARAMS, tmp_path / "t", {"model": "m"})
    assert rest.requests == whole.requests
    assert read_trace(tmp_path / "t").requests == whole.requests
    with pytest.raises(ConfigError, match="collected with model 'm', now 'other'"):
        collect_all(engine, "lookup", PROMPTS, PARAMS, tmp_path / "t", {"model": "other"})
    with pytest.raises(ConfigError, match="max_tokens 24, now 8"):
        collect_all(engine, "lookup", PROMPTS, replace(PARAMS, max_tokens=8), tmp_path / "t", {"model": "m"})


def test_a_drafter_of_chains_is_asked_for_a_chain() -> None:
    assert largest(replace(NgramDrafter.traits, trees=False)) == DraftShape(CHAIN, len(CHAIN))
    assert largest(replace(NgramDrafter.traits, trees=False, max_depth=3)) == DraftShape((1, 1, 1), 3)
