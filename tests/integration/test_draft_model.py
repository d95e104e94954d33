"""The draft model on golden targets: the target itself as drafter, and one made worse by noise in its weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwing.config_models import Config
from draftwing.core import NO_DRAFT, Request, SamplingParams, StepPlan
from draftwing.drafters.model_drafter import ModelDrafter
from draftwing.engine.build import build_engine
from draftwing.engine.step import Engine
from draftwing.errors import ConfigError
from draftwing.offline import run_all
from draftwing.policy.base import PlanInputs, Policy, UncutPolicy
from tests.integration.weaker import weaker_model

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
TARGETS = ("hf_greedy_llama8", "hf_greedy_gemma3_6")
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "seed": 3},
    "penalised": {"temperature": 0.8, "seed": 3, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "top_k": 40},
}


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Path:
    return GOLDENS / str(request.param) / "target"


@pytest.fixture(scope="module")
def weaker(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target with noise in its weights: right most of the time."""
    return weaker_model(target, tmp_path_factory.mktemp("weaker") / "model")


def engine(target: Path, draft: Path | None, mode: str, **cache: Any) -> Engine:
    document: dict[str, Any] = {
        "model": {"path": str(target), "cpu_threads": 1},
        "drafters": [{"method": "draft_model", "path": str(draft)}] if draft else [],
        "policy": {"mode": mode},
        "limits": {"prefill_chunk": 7, "sequences": 4, "batch_tokens": 64, "context": 128},
        "cache": {"tokens": 2048, **cache},
    }
    return build_engine(Config.model_validate(document))


def requests(settings: Mapping[str, Any], *, max_tokens: int = 32) -> list[Request]:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **settings)
    draw = torch.Generator().manual_seed(4)
    return [
        Request(f"{choice}/{n}", torch.randint(3, 100, (n,), generator=draw).tolist(), params, choice=choice)
        for choice, n in enumerate((1, 5, 12, 23, 40))
    ]


def decode(engine: Engine, asked: list[Request]) -> list[list[int]]:
    outputs = [output.token_ids for output in run_all(engine, asked)]
    assert engine.drafting.failures == 0
    engine.check()
    return outputs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["fixed:k=5", "fixed:tree=3x2x1", "fixed:k=3,width=2"])
def test_output_is_plain_decodings(target: Path, weaker: Path, kind: str, mode: str) -> None:
    asked = requests(KINDS[kind])
    plain = [decode(engine(target, None, "off"), [request])[0] for request in asked]
    drafting = engine(target, weaker, mode)
    assert decode(drafting, asked) == plain
    counters = drafting.counters
    assert counters.accepted_tokens > 20
    assert counters.draft_tokens > counters.accepted_tokens + 20
    assert counters.bad_drafts == 0


@pytest.mark.parametrize(("kind", "right"), [("greedy", 0.97), ("sampled", 0.85)])
def test_the_target_as_its_own_drafter_is_right(target: Path, kind: str, right: float) -> None:
    """Under the shared noise too, but for draws from below the entries whose noise a drafter looks at."""
    drafting = engine(target, target, "fixed:k=4")
    decode(drafting, requests(KINDS[kind]))
    counters = drafting.counters
    assert counters.accepted_tokens >= right * counters.draft_tokens > 80


class Sometimes(UncutPolicy):
    """Drafts in every third step alone, so that the drafter falls behind and catches up."""

    def __init__(self, inner: Policy) -> None:
        self.inner, self.drafter, self.largest, self.step = inner, inner.drafter, inner.largest, 0

    def decide(self, inputs: PlanInputs) -> StepPlan:
        self.step += 1
        plan = self.inner.decide(inputs)
        return plan if self.step % 3 == 0 else replace(plan, shapes=(NO_DRAFT,) * len(inputs))


def test_it_catches_up_after_idle_steps(target: Path) -> None:
    asked = requests(KINDS["greedy"])
    plain = decode(engine(target, None, "off"), asked)
    drafting = engine(target, target, "fixed:k=4")
    drafting.policy = Sometimes(drafting.policy)
    assert decode(drafting, asked) == plain
    counters = drafting.counters
    assert counters.accepted_tokens >= 0.97 * counters.draft_tokens > 30


@pytest.mark.parametrize("mode", ["fixed:k=4", "fixed:tree=2x2"])
def test_preemption_starts_its_cache_anew(target: Path, weaker: Path, mode: str) -> None:
    asked = requests(KINDS["sampled"])
    plain = [decode(engine(target, None, "off"), [request])[0] for request in asked]
    drafting = engine(target, weaker, mode, tokens=112, block_tokens=4)
    assert decode(drafting, asked) == plain
    assert drafting.counters.preemptions > 0
    assert drafting.counters.accepted_tokens > 10


@pytest.mark.parametrize("length", range(20, 24))
def test_a_prefix_hit_is_one_for_the_drafter_too(target: Path, length: int) -> None:
    """Prompt and output of a first turn are in both caches when the second turn comes, and are still right there."""
    drafting = engine(target, target, "fixed:k=4", block_tokens=4)
    drafter = drafting.drafting.drafter
    assert isinstance(drafter, ModelDrafter)
    first = Request(
        "first turn", list(range(30, 30 + length)), SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    )
    (output,) = decode(drafting, [first])
    second = Request("second turn", [*first.prompt_ids, *output, 7, 9], replace(first.params, max_tokens=6))
    plain = decode(engine(target, None, "off"), [second])
    caught_up = drafter.caught_up
    assert decode(drafting, [second]) == plain
    assert drafting.counters.prefix_hits > length + 30 - 8
    assert drafter.caught_up - caught_up < 16
    assert drafting.counters.accepted_tokens == drafting.counters.draft_tokens > 20


def test_rows_of_an_earlier_owner_are_not_used(target: Path) -> None:
    """Two texts take turns in a cache of two blocks, where each leaves half a block of rows over the other's."""
    drafting = engine(target, target, "fixed:k=4", tokens=32, block_tokens=16)
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    one, other = list(range(20, 37)), list(range(60, 80))
    for name, prompt in (("a", one), ("b", other), ("c", one), ("d", other)):
        decode(drafting, [Request(name, prompt, params)])
    assert drafting.counters.prefix_hits == 0
    assert drafting.counters.accepted_tokens == drafting.counters.draft_tokens > 15


def test_a_model_of_another_vocabulary_is_refused(target: Path) -> None:
    other = GOLDENS / "hf_greedy_qwen3_8" / "target"
    with pytest.raises(ConfigError, match=r"draft model .* token ids and the target"):
        engine(target, other, "fixed:k=2")


def test_a_model_of_too_few_positions_is_refused(target: Path, weaker: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    shutil.copytree(weaker, short)
    config = (short / "config.json").read_text()
    (short / "config.json").write_text(
        "\n".join(
            '  "max_position_embeddings": 64,' if "max_position_embeddings" in line else line
            for line in config.splitlines()
        )
    )
    with pytest.raises(ConfigError, match=r"takes 64 tokens, fewer than the target's 128; set limits\.context"):
        engine(target, short, "fixed:k=2")
