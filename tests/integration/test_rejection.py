"""`sampling: rejection`: the output is distributed as the target's, whatever was drafted; greedy output is the same."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from draftwing.core import DraftTree, FloatArray, Request, SamplingParams, StepPlan
from draftwing.drafters.base import Controller, DrafterTraits, SequenceView, TokenDrafter
from draftwing.drafters.children import children
from draftwing.drafters.growth import Growth
from draftwing.engine import rejection
from draftwing.engine.processors import SampleRows, SamplerState
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.naive_sampling import probabilities, processed
from draftwing.testing.run_engine import make_engine, run_to_end

Table = npt.NDArray[np.float64]
VOCAB, PROMPT, COUNT = 6, (4, 5), 3000
FALSE_ALARM = 1e-4


def target_logits(path: tuple[int, ...]) -> FloatArray:
    """Depends on the last two tokens; far from uniform."""
    draw = np.random.default_rng(list(path[-2:]))
    return draw.normal(0, 1.5, VOCAB).astype(np.float32)


def draft_logits(path: tuple[int, ...]) -> FloatArray:
    """A drafter that is about right."""
    draw = np.random.default_rng([9, *path[-2:]])
    return (0.6 * target_logits(path) + draw.normal(0, 0.8, VOCAB)).astype(np.float32)


class Drawing(TokenDrafter):
    """Draws children without replacement from its own distribution, or names that distribution's best."""

    traits = DrafterTraits(trees=True)

    def __init__(self, drawn: bool) -> None:
        self._drawn = drawn

    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Any = None
    ) -> list[DraftTree]:
        return [self._draft(s, shape) for s, shape in zip(sequences, plan.shapes, strict=True)]

    def _draft(self, sequence: SequenceView, shape: Any) -> DraftTree:
        growth = Growth(shape)
        state = SamplerState.create(sequence.params, sequence.tokens[: sequence.prompt_len], choice=sequence.choice)
        for depth, width in enumerate(shape.branching):
            logits = np.stack([draft_logits((*sequence.tokens, *path)) for path in growth.paths.tolist()])
            if self._drawn:
                positions = np.full(len(logits), len(sequence.tokens) + depth)
                rows = SampleRows([state], np.zeros(len(logits), dtype=np.int64), positions)
                found = children(torch.from_numpy(logits), rows, width, sources=True)
                growth.add(found.tokens, found.confidences, VOCAB, found.sources)
            else:
                best = np.argsort(-logits, axis=1)
                growth.add(best, np.ones(best.shape, dtype=np.float32), VOCAB)
        return growth.tree()


PARAMS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "cut": {"temperature": 0.8, "top_k": 4, "top_p": 0.9},
    "penalised": {"temperature": 1.0, "frequency_penalty": 1.5, "repetition_penalty": 1.2, "logit_bias": {2: 1.0}},
}


def expected(settings: dict[str, Any]) -> Table:
    """[V, V]: probability of the first two tokens, from the slow rules written down independently."""
    params = SamplingParams(**settings)
    table = np.zeros((VOCAB, VOCAB))
    p = probabilities(processed(target_logits(PROMPT), params, PROMPT, []), params)
    for first in range(VOCAB):
        values = processed(target_logits((*PROMPT, first)), params, PROMPT, [first])
        table[first] = p[first] * probabilities(values, params)
    return table


def observed(settings: dict[str, Any], drawn: bool, branching: tuple[int, ...]) -> tuple[Table, Any]:
    """Counts [V, V] of the first two tokens over many seeds, and the engine's counters."""
    runner = MockTarget(MockBehaviour(VOCAB, distribution=target_logits), slots=4096)
    engine = make_engine(
        runner, drafter=Drawing(drawn), branching=branching, blocks=1024, sequences=64, queue=COUNT, rejection=True
    )
    requests = [Request(str(i), list(PROMPT), SamplingParams(max_tokens=3, seed=i, **settings)) for i in range(COUNT)]
    counts = np.zeros((VOCAB, VOCAB))
    for received in run_to_end(engine, requests, most_steps=COUNT * 4).values():
        counts[received.tokens[0], received.tokens[1]] += 1
    return counts, engine.counters


def fits(counts: Table, table: Table) -> bool:
    live = table > 0
    expect = table[live] / table[live].sum() * counts.sum()
    return not counts[~live].any() and bool(stats.chisquare(counts[live], expect).pvalue > FALSE_ALARM)


CASES = [
    pytest.param("plain", True, (1, 1), id="chain-drawn"),
    pytest.param("plain", False, (1, 1), id="chain-chosen"),
    pytest.param("cut", True, (3, 2), id="tree-drawn-cut"),
    pytest.param("penalised", True, (2, 2), id="tree-drawn-penalised", marks=pytest.mark.slow),
    pytest.param("penalised", False, (3, 1), id="tree-chosen-penalised"),
    pytest.param("cut", False, (2, 2), id="tree-chosen-cut", marks=pytest.mark.slow),
    pytest.param("cut", True, (1, 1, 1), id="chain-drawn-cut", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "drawn", "branching"), CASES)
def test_the_distribution_is_the_targets(kind: str, drawn: bool, branching: tuple[int, ...]) -> None:
    counts, counters = observed(PARAMS[kind], drawn, branching)
    assert counters.accepted_tokens > COUNT // 8
    assert counters.draft_tokens - counters.accepted_tokens > COUNT // 4
    assert fits(counts, expected(PARAMS[kind]))


def draw_again_from_p(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rejection, "residual", lambda p, q: p)


def accept_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rejection, "_uniforms", lambda *args: tuple(0 * u for u in uniforms(*args)))


def another_q_than_the_drafts_were_drawn_from(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rejection, "_dense", lambda _, shape: np.full(shape, 1 / VOCAB))


uniforms = rejection._uniforms


@pytest.mark.parametrize("fault", [draw_again_from_p, accept_everything, another_q_than_the_drafts_were_drawn_from])
def test_a_planted_fault_is_noticed(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    counts, _ = observed(PARAMS["plain"], True, (1, 1))
    assert not fits(counts, expected(PARAMS["plain"]))


def test_greedy_output_is_plain_and_a_seed_repeats() -> None:
    outputs: dict[str, list[list[int]]] = {}
    for name, branching, by_rejection in (("plain", (), False), ("a", (2, 2), True), ("b", (2, 2), True)):
        runner = MockTarget(MockBehaviour(VOCAB, distribution=target_logits), slots=4096)
        engine = make_engine(runner, drafter=Drawing(True), branching=branching, blocks=1024, rejection=by_rejection)
        params = [
            SamplingParams(max_tokens=12, temperature=0.0),
            SamplingParams(max_tokens=12, temperature=1.0, seed=3),
        ]
        received = run_to_end(engine, [Request(str(i), list(PROMPT), p) for i, p in enumerate(params)])
        outputs[name] = [received[str(i)].tokens for i in range(2)]
    assert outputs["a"][0] == outputs["b"][0] == outputs["plain"][0]
    assert outputs["a"][1] == outputs["b"][1]
