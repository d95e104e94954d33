"""EAGLE of all versions and MTP on golden targets: rule R1 in every way that rows can go through the engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.drafters.feature_drafter import FeatureDrafter
from draftwing.engine.build import build_engine
from draftwing.engine.step import Engine
from draftwing.testing.run_engine import run_to_end
from tests.conftest import ROOT

GOLDENS = ROOT / "tests" / "goldens"
# (target, options of the drafter)
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle": ("hf_greedy_llama8", {"method": "eagle", "path": str(GOLDENS / "eagle1_bias" / "drafter")}),
    "eagle2": ("hf_greedy_llama8", {"method": "eagle2", "path": str(GOLDENS / "eagle1_nobias" / "drafter")}),
    "eagle3": ("hf_greedy_llama8", {"method": "eagle3", "path": str(GOLDENS / "eagle3_d2t" / "drafter")}),
    "mtp": ("mtp_deepseek_v3", {"method": "mtp"}),
    "mtp dynamic": ("mtp_deepseek_v3", {"method": "mtp", "tree": "dynamic"}),
}
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.7, "repetition_penalty": 1.1, "top_k": 40},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWING_CACHE", str(tmp_path))


def make(head: str, mode: str, tokens: int) -> Engine:
    target, options = HEADS[head]
    document = {
        "model": {"path": str(GOLDENS / target / "target"), "cpu_threads": 1, "compile": False},
        "drafters": [options] if mode != "off" else [],
        "policy": {"mode": mode},
        "limits": {"prefill_chunk": 7, "sequences": 4, "batch_tokens": 64, "context": 128},
        "cache": {"tokens": tokens, "block_tokens": 8},
    }
    return build_engine(Config.model_validate(document))


def requests(kind: str, turn: int) -> list[Request]:
    """The same prompts in every turn, so that the second finds the first's blocks."""
    made = []
    for i, length in enumerate((13, 26, 40)):
        prompt = torch.randint(3, 128, (length,), generator=torch.Generator().manual_seed(i)).tolist()
        params = SamplingParams(max_tokens=32, seed=i, ignore_eos=True, **PARAMS[kind])
        made.append(Request(f"{i}-{turn}", prompt, params))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [2048, 136])
@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("mode", ["fixed:k=4", "fixed:tree=3x2x1"])
@pytest.mark.parametrize("head", HEADS)
def test_the_output_is_that_of_plain_decoding(head: str, mode: str, kind: str, tokens: int) -> None:
    plain, drafted = make(head, "off", 2048), make(head, mode, tokens)
    for turn in range(2):
        want = run_to_end(plain, requests(kind, turn))
        got = run_to_end(drafted, requests(kind, turn))
        assert {name: one.tokens for name, one in got.items()} == {name: one.tokens for name, one in want.items()}
    counters = drafted.counters
    assert drafted.drafting.failures == 0
    assert counters.bad_drafts == 0
    assert counters.accepted_tokens > 5
    assert counters.branched_tokens > 0 or "tree" not in mode
    assert counters.prefix_hits > 0
    assert (counters.preemptions > 0) == (tokens < 2048)


def test_a_prefix_hit_is_one_for_the_drafter() -> None:
    """The second turn drafts as the first did, from blocks that it didn't fill, and leaves no hole."""
    for head in HEADS:
        engine = make(head, "fixed:k=4", 2048)
        run_to_end(engine, requests("greedy", 0))
        drafter = engine.drafting.drafter
        assert isinstance(drafter, FeatureDrafter)
        before, caught_up = engine.counters.accepted_tokens, drafter.caught_up
        run_to_end(engine, requests("greedy", 1))
        assert engine.counters.prefix_hits > 0
        assert drafter.holes == 0
        assert engine.counters.accepted_tokens == 2 * before
        assert drafter.caught_up - caught_up < caught_up
