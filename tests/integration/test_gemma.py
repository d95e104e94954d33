"""R1 on a real model: Gemma 3 270M gives the tokens of transformers' `generate`, however they are drafted.

Near-ties are excused as R1 says. Texts that loop are counted apart: a base model repeats itself, which flatters lookup.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from draftwing.core import SamplingParams
from tests.integration.gemma import PLAIN, TOGETHER, Gemma, Run
from tests.prompts import humaneval, many_summaries, summaries

NEW_TOKENS = 96
CHAIN, TREE = "fixed:k=4", "fixed:tree=3x2x1"
GREEDY = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0)
SAMPLED = SamplingParams(
    max_tokens=48,
    temperature=0.8,
    top_p=0.95,
    repetition_penalty=1.05,
    frequency_penalty=0.1,
    presence_penalty=0.1,
)

Prompts = list[list[int]]


@pytest.fixture(scope="module")
def gemma(demo_folder: Path) -> Gemma:
    return Gemma(demo_folder)


@pytest.fixture(scope="module")
def prompts(gemma: Gemma) -> Prompts:
    return gemma.encode([*humaneval(4), *summaries(4)])


@pytest.fixture(scope="module")
def generated(gemma: Gemma, prompts: Prompts) -> list[list[int]]:
    return gemma.generate(prompts, NEW_TOKENS, together=TOGETHER)


def assert_drafts_were_judged(run: Run, *, least: int) -> None:
    """At least so many draft tokens were accepted and as many were not."""
    assert run.accepted >= least, str(run)
    assert run.drafted - run.accepted >= least, str(run)


def test_prompts_pass_the_sliding_window(gemma: Gemma, prompts: Prompts) -> None:
    window = gemma.reference.config.sliding_window
    assert min(map(len, prompts)) < window < max(map(len, prompts))


def test_plain_decoding_equals_generate(gemma: Gemma, prompts: Prompts, generated: list[list[int]]) -> None:
    run = gemma.decode(prompts, GREEDY, PLAIN)
    assert run.drafted == 0
    assert gemma.assert_same(generated, run).tokens >= len(prompts) * NEW_TOKENS // 2


def test_a_drafted_chain_equals_generate(gemma: Gemma, prompts: Prompts, generated: list[list[int]]) -> None:
    run = gemma.decode(prompts, GREEDY, CHAIN)
    gemma.assert_same(generated, run)
    assert_drafts_were_judged(run, least=100)
    assert run.acceptance_length(looping=False) > 1.2


def test_a_drafted_tree_equals_generate(gemma: Gemma, prompts: Prompts, generated: list[list[int]]) -> None:
    run = gemma.decode(prompts[::2], GREEDY, TREE)
    gemma.assert_same(generated[::2], run)
    assert_drafts_were_judged(run, least=50)
    assert run.branched >= 5, str(run)
    assert run.acceptance_length(looping=False) > 1.2


def test_drafting_changes_no_sampled_token(gemma: Gemma, prompts: Prompts) -> None:
    some = prompts[::2]
    plain = gemma.decode(some, SAMPLED, PLAIN)
    run = gemma.decode(some, SAMPLED, CHAIN)
    gemma.assert_same(plain.tokens, run)
    assert_drafts_were_judged(run, least=5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["humaneval", "summaries"])
def test_fifty_prompts(gemma: Gemma, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`generate` one prompt at a time; ours side by side, new ones joining as others end."""
    texts, what = (humaneval(50), "HumanEval") if kind == "humaneval" else many_summaries(50)
    many = gemma.encode(texts)
    generated = gemma.generate(many, NEW_TOKENS, together=1)
    sampled = gemma.decode(many, SAMPLED, PLAIN).tokens
    for params, plain in ((GREEDY, generated), (SAMPLED, sampled)):
        for mode in (PLAIN, CHAIN, TREE) if params is GREEDY else (CHAIN, TREE):
            run = gemma.decode(many, params, mode)
            comparison = gemma.assert_same(plain, run)
            with capsys.disabled():
                print(f"\n{what}, temperature {params.temperature:g}, {mode}: {comparison}; {run}", flush=True)
            if mode != PLAIN:
                assert_drafts_were_judged(run, least=50)
            assert (run.branched > 0) == (mode == TREE)
