"""A drafter that is configured and nothing else: every method runs under `adaptive`, and R1 holds."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from draftwing.checkpoints.hub import resolve_model
from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.engine.build import engine_for
from draftwing.engine.loading import LoadedTarget, load_target
from draftwing.engine.step import Engine
from draftwing.policy.adaptive import AdaptivePolicy
from draftwing.testing.golden_world import HEADS
from draftwing.testing.goldens.case import Case
from draftwing.testing.run_engine import run_to_end
from tests.conftest import ROOT
from tests.tiny_models import golden

GOLDENS = ROOT / "tests" / "goldens"
WITHOUT_HEAD: dict[str, list[dict[str, Any]]] = {
    "ngram": [{"method": "ngram"}],
    "suffix": [{"method": "suffix"}],
    "lookahead": [{"method": "lookahead"}],
    "draft_model": [{"method": "draft_model", "path": str(golden("llama8"))}],
    "auto": [{"method": "ngram"}, {"method": "suffix"}, {"method": "auto"}],
}
ONE_EACH = {entry["method"]: case for case, entry in reversed(HEADS.items())}
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 0.0, "repetition_penalty": 1.1},
    {"temperature": 1.0, "seed": 5, "top_k": 40},
)


@lru_cache
def target(folder: Path) -> LoadedTarget:
    found = resolve_model(Config.model_validate({"model": {"path": str(folder)}}).model)
    return load_target(found, dtype="float32", device="cpu", threads=1)


def configured(drafter: str) -> tuple[Path, list[dict[str, Any]]]:
    """The target's folder, and what stands under `drafters`."""
    if drafter in WITHOUT_HEAD:
        return golden("llama8"), WITHOUT_HEAD[drafter]
    case = Case(GOLDENS / drafter)
    folder = case.part("target")
    assert folder is not None
    return folder, [{"path": str(case.part("drafter")), **HEADS[drafter]}]


@pytest.mark.parametrize("drafter", [*ONE_EACH.values(), *WITHOUT_HEAD])
def test_every_method_drafts_under_it_and_changes_no_token(
    drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWING_CACHE", str(tmp_path))
    folder, drafters = configured(drafter)
    document = {
        "model": {"path": str(folder), "compile": False},
        "limits": {"prefill_chunk": 7, "sequences": 4, "batch_tokens": 64, "context": 128},
        "cache": {"tokens": 1024, "block_tokens": 8},
    }

    def outputs(document: dict[str, Any]) -> tuple[Engine, dict[str, list[int]]]:
        loaded = target(folder)
        engine = engine_for(Config.model_validate(document), replace(loaded, model=deepcopy(loaded.model)))
        asked = [
            Request(f"{i}", [5, 6, 7, 8] * (i + 2), SamplingParams(max_tokens=24, ignore_eos=True, **kind))
            for i, kind in enumerate(KINDS)
        ]
        return engine, {name: found.tokens for name, found in run_to_end(engine, asked).items()}

    _, plain = outputs(document)
    engine, found = outputs(document | {"drafters": drafters})
    assert found == plain
    assert isinstance(engine.policy, AdaptivePolicy)
    assert (engine.drafting.failures, engine.counters.bad_drafts) == (0, 0)
    assert engine.counters.draft_tokens > 0
