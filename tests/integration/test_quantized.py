"""A target with quantized weights, through config, loading and the engine: rule R1 holds for the quantized model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.engine.build import build_local
from draftwing.kernels.cpu_kernel import find_compiler
from draftwing.offline import run_all
from draftwing.policy.modes import parse_mode
from tests.conftest import require
from tests.random_targets import VOCAB, save_random


@pytest.mark.parametrize("bits", ["int8", "int4"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_moe"])
def test_speculation_changes_nothing(name: str, bits: str, tmp_path: Path) -> None:
    if find_compiler() is None:
        require("g++")
    model = {"path": str(save_random(name, tmp_path / "model")), "quantization": bits, "cpu_threads": 1}
    config = {"model": model, "drafters": [{"method": "ngram", "min_match": 1}], "cache": {"tokens": 2048}}
    told: list[str] = []
    engine, _ = build_local(Config.model_validate(config), progress=told.append)
    assert any(f"quantizing to {bits}" in line for line in told)
    draw = np.random.default_rng(3)
    prompts = [draw.integers(3, VOCAB, 8).tolist() * 3 for _ in range(4)]
    outputs = {}
    for mode in ("off", "fixed:k=4", "fixed:tree=2x2"):
        engine.policy = parse_mode(mode, "ngram")
        params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
        requests = [Request(f"{mode} {i}", prompt, params) for i, prompt in enumerate(prompts)]
        outputs[mode] = [output.token_ids for output in run_all(engine, requests)]
    assert engine.counters.draft_tokens > 0
    assert outputs["fixed:k=4"] == outputs["fixed:tree=2x2"] == outputs["off"]
