"""Medusa in the engine, on the target that the golden heads were trained for: rule R1, and real gains."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.engine.build import build_engine
from draftwing.engine.step import Engine
from draftwing.offline import run_all

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
TARGET, HEADS = GOLDENS / "hf_greedy_llama8" / "target", GOLDENS / "medusa1" / "drafter"
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "seed": 3},
    "penalised": {"temperature": 0.8, "seed": 3, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "top_k": 40},
}
# Accepted nodes a token at least, half of the least that was seen.
LEAST = {"greedy": 0.15, "sampled": 0.05, "penalised": 0.03}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWING_CACHE", str(tmp_path / "cache"))


def engine(mode: str, drafter: dict[str, Any] | None = None, tokens: int = 2048, **more: Any) -> Engine:
    document: dict[str, Any] = {
        "model": {"path": str(TARGET), "cpu_threads": 1},
        "drafters": [{"method": "medusa", "path": str(HEADS), **(drafter or {})}] if mode != "off" else [],
        "policy": {"mode": mode},
        "limits": {"prefill_chunk": 7, "sequences": 4, "batch_tokens": 64, "context": 128},
        "cache": {"tokens": tokens, "block_tokens": 4},
        **more,
    }
    return build_engine(Config.model_validate(document))


def requests(settings: dict[str, Any], max_tokens: int = 32) -> list[Request]:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **settings)
    stored = load_file(GOLDENS / "hf_greedy_llama8" / "case.safetensors")
    prompts = [stored[f"prompt_{i}"].tolist() for i in range(4)]
    return [Request(f"{choice}", prompt, params, choice=choice) for choice, prompt in enumerate([[5], *prompts])]


def decode(engine: Engine, asked: list[Request]) -> list[list[int]]:
    outputs = [output.token_ids for output in run_all(engine, asked)]
    assert engine.drafting.failures == 0
    assert engine.counters.bad_drafts == 0
    engine.check()
    return outputs


@pytest.mark.parametrize(("mode", "kind"), [("fixed:k=5", "greedy"), ("fixed:tree=3x2x1", "penalised")])
def test_output_is_that_of_plain_decoding(mode: str, kind: str) -> None:
    asked = requests(KINDS[kind])
    drafting = engine(mode)
    assert decode(drafting, asked) == decode(engine("off"), asked)
    counters = drafting.counters
    assert counters.accepted_tokens >= LEAST[kind] * counters.generated_tokens
    if "tree" in mode:
        assert counters.branched_tokens > 0


def test_preemption_and_prefix_hits_change_no_token() -> None:
    asked = requests(KINDS["sampled"], max_tokens=48)
    drafting = engine("fixed:tree=2x2", tokens=176)
    plain = decode(engine("off"), asked)
    assert decode(drafting, asked) == plain
    assert decode(drafting, asked[3:4]) == plain[3:4]
    assert drafting.counters.preemptions > 0
    assert drafting.counters.prefix_hits > 0


def test_a_static_tree_keeps_what_fits_into_the_plan() -> None:
    choices = [[0], [1], [0, 0], [0, 0, 0], [2], [1, 0]]
    drafting = engine("fixed:tree=2x1x1", {"choices": choices})
    asked = requests(KINDS["greedy"])[2:3]
    assert decode(drafting, asked) == decode(engine("off"), asked)
    assert drafting.counters.draft_tokens <= 5 * drafting.counters.drafts
    assert drafting.counters.accepted_tokens > 0


def test_a_tree_that_the_plan_names_is_drafted_as_one_that_the_drafter_has() -> None:
    paths = [[0], [1], [0, 0], [2], [0, 0, 0], [1, 0]]
    named = engine("fixed:paths=" + ",".join(".".join(map(str, path)) for path in paths))
    chosen = engine("fixed:tree=3x3x3", {"choices": paths})
    asked = requests(KINDS["sampled"])
    assert decode(named, asked) == decode(chosen, asked) == decode(engine("off"), asked)
    assert named.counters.accepted_per_depth == chosen.counters.accepted_per_depth
    assert named.counters.draft_tokens == chosen.counters.draft_tokens
    assert named.counters.branched_tokens > 0


def test_rejection_drafts_say_what_they_were_drawn_from() -> None:
    drafting = engine("fixed:tree=3x2", sampling="rejection")
    decode(drafting, requests(KINDS["sampled"]))
    assert drafting.counters.accepted_tokens > 0
    assert drafting.counters.branched_tokens > 0


def heads() -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(str(HEADS))
    return {name: checkpoint.read(name) for name in checkpoint.names()}


def head_folder(place: Path, tensors: dict[str, torch.Tensor]) -> str:
    place.mkdir()
    (place / "config.json").write_text(json.dumps({"medusa_num_heads": 2}))
    save_file(tensors, place / "medusa_lm_head.safetensors")
    return str(place)


def test_heads_inside_the_target_draft_alike(tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    shutil.copytree(TARGET, merged)
    tensors = load_file(merged / "model.safetensors")
    inside = {f"medusa_head.{name}": tensor for name, tensor in heads().items()}
    save_file({**tensors, **inside}, merged / "model.safetensors", metadata={"format": "pt"})
    one = engine("fixed:k=5", {"path": None}, model={"path": str(merged), "cpu_threads": 1})
    other, asked = engine("fixed:k=5"), requests(KINDS["greedy"])
    assert decode(one, asked) == decode(other, asked)
    assert one.counters.accepted_per_depth == other.counters.accepted_per_depth


def test_legacy_heads_of_several_blocks_use_the_targets_projection(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in heads().items() if "linear" in name}
    second = {name.replace(".0.linear", ".1.linear"): torch.zeros_like(tensor) for name, tensor in tensors.items()}
    asked = requests(KINDS["greedy"])
    outputs, accepted = [], []
    for name, stored in (("one", tensors), ("two", {**tensors, **second})):
        drafting = engine("fixed:k=5", {"path": head_folder(tmp_path / name, stored)})
        outputs.append(decode(drafting, asked))
        accepted.append(drafting.counters.accepted_per_depth)
    assert outputs[0] == outputs[1] == decode(engine("off"), asked)
    assert accepted[0] == accepted[1], "a block of zeros changes nothing"
