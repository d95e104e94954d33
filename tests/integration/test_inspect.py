"""What is told of a checkpoint agrees with what the engine makes of it; a drafter's method may be left to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftwing.checkpoints.hub import resolve_model
from draftwing.checkpoints.inspection import Inspection, inspect_checkpoint
from draftwing.config_models import Config, ModelConfig
from draftwing.drafters.base import DrafterTraits
from draftwing.drafters.registry import find_method
from draftwing.engine.build import build_engine
from draftwing.engine.loading import load_target
from draftwing.engine.runner import kv_bytes_per_slot, probe_layers
from draftwing.engine.step import Engine
from draftwing.errors import ConfigError
from tests.conftest import ROOT

GOLDENS = ROOT / "tests" / "goldens"
QWEN = ("dflash_full", "dflash_swa_causal", "dflash2", "dspark_vanilla")
LLAMA = ("eagle1_bias", "eagle1_nobias", "eagle3_d2t", "eagle3_fullvocab", "eagle3_speculators", "medusa1")
TARGETS = {**dict.fromkeys(QWEN, "hf_greedy_qwen3_8"), **dict.fromkeys(LLAMA, "hf_greedy_llama8")}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWING_CACHE", str(tmp_path / "cache"))


def build(target: str, *drafters: dict[str, Any]) -> Engine:
    document = {
        "model": {"path": str(GOLDENS / target / "target"), "cpu_threads": 1, "compile": False},
        "drafters": list(drafters),
        "cache": {"tokens": 256, "block_tokens": 8},
    }
    return build_engine(Config.model_validate(document))


@pytest.mark.parametrize("case", TARGETS)
def test_a_drafter_of_a_path_alone_is_what_was_told(case: str) -> None:
    folder, target = str(GOLDENS / case / "drafter"), TARGETS[case]
    found = inspect_checkpoint(folder, target=str(GOLDENS / target / "target"))
    traits = build(target, {"path": folder}).drafting.drafter.traits
    assert traits.kv_bytes_per_token == found.parts[0].cache["float32"]
    assert traits.hidden_layers == ((8,) if found.features is None else found.features.hidden_states)
    check_facts(found.layout.method, traits)


def test_modules_inside_of_a_target() -> None:
    found = inspect_checkpoint(str(GOLDENS / "mtp_deepseek_v3" / "target"))
    traits = build("mtp_deepseek_v3", {"method": "mtp"}).drafting.drafter.traits
    assert traits.kv_bytes_per_token == found.parts[1].cache["float32"]
    check_facts("mtp", traits)


def check_facts(method: str, traits: DrafterTraits) -> None:
    """What is said of a method before a checkpoint is loaded is true of a drafter that has one."""
    facts = find_method(method).facts
    for fact in ("kind", "stop", "trees", "confidence", "stateful_across_requests", "sharding"):
        assert getattr(facts, fact) == getattr(traits, fact), fact
    assert facts.own_cache == (traits.kv_bytes_per_token > 0)


@pytest.mark.parametrize(
    "name", ["hf_greedy_llama8", "hf_greedy_qwen3_8", "hf_greedy_mixtral3", "hf_greedy_gemma3_6", "mtp_deepseek_v3"]
)
def test_a_targets_cache_is_what_was_told(name: str) -> None:
    folder = GOLDENS / name / "target"
    model = inspect_checkpoint(str(folder)).parts[0]
    target = load_target(resolve_model(ModelConfig(path=str(folder))), device="cpu")
    layers = probe_layers(target.model, target.device)
    assert model.layers == len(layers)
    assert model.cache["float32"] == kv_bytes_per_slot(layers, target.dtype)
    saved = target.model.state_dict().keys()
    weights = [*target.model.parameters(), *(b for name, b in target.model.named_buffers() if name in saved)]
    assert model.parameters == sum(weight.numel() for weight in weights)


@pytest.mark.parametrize(
    ("drafter", "told"),
    [
        (
            {"method": "eagle", "path": "eagle3_d2t/drafter"},
            r"drafters\.0\.method is 'eagle', but the checkpoint .*eagle3_d2t/drafter is one of method 'eagle3'",
        ),
        ({"method": "dflash", "path": "dflash2/drafter"}, r"'dflash', but .* of method 'dflash2'"),
        ({"method": "medusa", "path": "hf_greedy_llama8/target"}, r"'medusa', but .* of method 'draft_model'"),
        (
            {"method": "draft_model", "path": "eagle1_bias/drafter"},
            r"'draft_model', but .* expected 'eagle' or 'eagle2'",
        ),
        ({"path": "mtp_deepseek_v3/target"}, r"drafters\.0\.method is missing, and .* name one of mtp, draft_model"),
    ],
)
def test_a_method_that_its_checkpoint_contradicts_is_refused(drafter: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        build("hf_greedy_llama8", {**drafter, "path": str(GOLDENS / drafter["path"])})


def test_several_drafters_are_named_by_their_folders(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(GOLDENS / "eagle3_d2t" / "drafter")
    engine = build(
        "hf_greedy_llama8", {"method": "auto"}, {"path": str(tmp_path / "one")}, {"path": str(tmp_path / "two")}
    )
    assert set(engine.drafting.drafter.drafters) == {"one", "two"}  # type: ignore[attr-defined]


def test_a_whole_model_drafts_as_a_model(tmp_path: Path) -> None:
    (tmp_path / "small").symlink_to(GOLDENS / "hf_greedy_llama8" / "target")
    engine = build("hf_greedy_llama8", {"path": str(tmp_path / "small")})
    told: Inspection = inspect_checkpoint(str(tmp_path / "small"))
    assert engine.drafting.drafter.traits.kv_bytes_per_token == told.parts[0].cache["float32"]
