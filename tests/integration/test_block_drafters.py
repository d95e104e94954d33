"""The block drafters in the engine, on the target that their golden heads were trained for: rule R1, and real gains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.drafters.block_drafter import BlockDrafter
from draftwing.engine.build import build_engine
from draftwing.engine.step import Engine
from draftwing.offline import run_all

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
HEADS = {"dflash_full": "dflash", "dflash_swa_causal": "dflash", "dflash2": "dflash2", "dspark_vanilla": "dspark"}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "seed": 3},
    "penalised": {"temperature": 0.8, "seed": 3, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "top_k": 40},
}
# Accepted nodes a token at least, half of the least that was seen.
LEAST = {"greedy": 0.05, "sampled": 0.03, "penalised": 0.01}


def engine(head: str | None, mode: str, tokens: int = 2048, **limits: Any) -> Engine:
    drafters = [{"method": HEADS[head], "path": str(GOLDENS / head / "drafter")}] if head else []
    document: dict[str, Any] = {
        "model": {"path": str(GOLDENS / "hf_greedy_qwen3_8" / "target"), "cpu_threads": 1},
        "drafters": drafters,
        "policy": {"mode": mode},
        "limits": {"prefill_chunk": 7, "sequences": 4, "batch_tokens": 64, "context": 128, **limits},
        "cache": {"tokens": tokens, "block_tokens": 4},
    }
    return build_engine(Config.model_validate(document))


def requests(settings: dict[str, Any], max_tokens: int = 32) -> list[Request]:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **settings)
    stored = load_file(GOLDENS / "hf_greedy_qwen3_8" / "case.safetensors")
    prompts = [stored[f"prompt_{i}"].tolist() for i in range(4)]
    return [Request(f"{choice}", prompt, params, choice=choice) for choice, prompt in enumerate([[5], *prompts])]


def decode(engine: Engine, asked: list[Request]) -> list[list[int]]:
    outputs = [output.token_ids for output in run_all(engine, asked)]
    assert engine.drafting.failures == 0
    assert engine.counters.bad_drafts == 0
    engine.check()
    return outputs


def block_drafter(engine: Engine) -> BlockDrafter:
    drafter = engine.drafting.drafter
    assert isinstance(drafter, BlockDrafter)
    return drafter


@pytest.mark.parametrize(("mode", "kind"), [("fixed:k=5", "greedy"), ("fixed:tree=3x2x1", "penalised")])
@pytest.mark.parametrize("head", HEADS)
def test_output_is_that_of_plain_decoding(head: str, mode: str, kind: str) -> None:
    asked = requests(KINDS[kind])
    drafting = engine(head, mode)
    assert decode(drafting, asked) == decode(engine(None, "off"), asked)
    counters = drafting.counters
    assert counters.accepted_tokens >= LEAST[kind] * counters.generated_tokens
    if "tree" in mode:
        assert counters.branched_tokens > 0
    assert block_drafter(drafting).holes == 0


@pytest.mark.parametrize("head", HEADS)
def test_a_prefix_hit_is_context_too(head: str) -> None:
    drafting = engine(head, "fixed:k=5")
    asked = requests(KINDS["greedy"])[2:4]
    first = decode(drafting, asked)
    drafter = block_drafter(drafting)
    before, accepted = drafter.caught_up, drafting.counters.accepted_tokens
    assert decode(drafting, asked) == first
    assert drafting.counters.prefix_hits > 0
    assert accepted > 0
    assert drafter.holes == 0
    assert drafter.caught_up - before < before
    assert drafting.counters.accepted_tokens == 2 * accepted


@pytest.mark.parametrize("head", ["dflash_full", "dspark_vanilla"])
def test_preemption_changes_no_token(head: str) -> None:
    asked = requests(KINDS["sampled"], max_tokens=48)
    drafting = engine(head, "fixed:k=5", tokens=176)
    assert decode(drafting, asked) == decode(engine(None, "off"), asked)
    assert drafting.counters.preemptions > 0
    assert drafting.counters.accepted_tokens > 0
