"""Heads on their golden targets, every other call of which is spoiled by one fault after another (rule R3)."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwing.config_models import Config
from draftwing.core import DraftTree, Request, SamplingParams
from draftwing.engine.build import build_engine
from draftwing.engine.step import Engine
from draftwing.testing.faulty import FAULTS, FaultyDrafter
from draftwing.testing.run_engine import run_to_end
from tests.conftest import ROOT

GOLDENS = ROOT / "tests" / "goldens"
# Method, folder, target.
HEADS = [
    ("eagle", "eagle1_bias", "hf_greedy_llama8"),
    ("eagle2", "eagle1_nobias", "hf_greedy_llama8"),
    ("eagle3", "eagle3_d2t", "hf_greedy_llama8"),
    ("medusa", "medusa1", "hf_greedy_llama8"),
    ("dflash", "dflash_full", "hf_greedy_qwen3_8"),
    ("dflash2", "dflash2", "hf_greedy_qwen3_8"),
    ("dspark", "dspark_vanilla", "hf_greedy_qwen3_8"),
    ("mtp", None, "mtp_deepseek_v3"),
]


def make(target: str, drafters: list[dict[str, Any]]) -> Engine:
    document = {
        "model": {"path": str(GOLDENS / target / "target"), "cpu_threads": 1, "compile": False},
        "drafters": drafters,
        "policy": {"mode": "fixed:tree=2x1x1" if drafters else "off"},
        "limits": {"prefill_chunk": 7, "sequences": 4, "batch_tokens": 64, "context": 128},
        "cache": {"tokens": 512, "block_tokens": 8},
    }
    return build_engine(Config.model_validate(document))


def requests() -> list[Request]:
    made = []
    for i, length in enumerate((13, 26, 9)):
        prompt = torch.randint(3, 128, (length,), generator=torch.Generator().manual_seed(i)).tolist()
        params = SamplingParams(max_tokens=48, seed=i, ignore_eos=True, temperature=0.7 * (i == 1))
        made.append(Request(str(i), prompt, params))
    return made


@pytest.mark.parametrize(("method", "folder", "target"), HEADS)
def test_faults_between_good_drafts_change_no_token(
    method: str, folder: str | None, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWING_CACHE", str(tmp_path))
    path = {} if folder is None else {"path": str(GOLDENS / folder / "drafter")}
    engine = make(target, [{"method": method, **path}])
    faults, calls = list(FAULTS), count()
    met: set[str] = set()

    def spoil(drafts: list[DraftTree]) -> Any:
        call = next(calls)
        if call % 2:
            return drafts
        fault = faults[call // 2 % len(faults)]
        met.add(fault)
        return FAULTS[fault](drafts)

    engine.drafting.drafter = FaultyDrafter(engine.drafting.drafter, spoil)
    want = run_to_end(make(target, []), requests())
    got = run_to_end(engine, requests())
    assert {name: one.tokens for name, one in got.items()} == {name: one.tokens for name, one in want.items()}
    assert met == set(FAULTS)
    assert engine.counters.bad_drafts > 0
    assert engine.counters.accepted_tokens > 0
