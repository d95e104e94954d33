"""The capacity plan: known totals of large models, and the very numbers of models that can be loaded here."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from draftwing import cli
from draftwing.checkpoints import hf
from draftwing.checkpoints.known import find_config, known_config
from draftwing.checkpoints.model_folder import open_folder
from draftwing.checkpoints.split import split_of
from draftwing.config import load_config
from draftwing.config_models import Config, ParallelConfig
from draftwing.engine.loading import load_target
from draftwing.engine.runner import kv_bytes_per_slot, probe_layers
from draftwing.errors import ConfigError, SetupError
from draftwing.parallel.capacity import CapacityPlan, Hardware, plan_capacity
from tests.conftest import ROOT
from tests.random_targets import TARGETS, config_of, save_random
from tests.tiny_models import GOLDENS, golden

CONFIGS = ROOT / "deployments" / "configs"
NODE = Hardware(80_000_000_000, 8)


def shipped(name: str, **settings: Any) -> CapacityPlan:
    overrides = {key.replace("__", "."): value for key, value in settings.items()}
    return plan_capacity(load_config(CONFIGS / name, overrides, {}).config, NODE)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_llama_70b_on_eight_ranks() -> None:
    plan = shipped("llama-3.3-70b-tp8.yaml")
    assert plan.parameters == pytest.approx(70.55e9, rel=1e-3)
    assert plan.weight_bytes_per_rank == pytest.approx(70.55e9 * 2 / 8, rel=1e-3)
    assert plan.kv_bytes_per_token_per_rank == 80 * 2 * 128 * 2  # one of the eight heads
    assert (plan.ranks, plan.nodes) == (8, 1)


def test_more_ranks_than_key_value_heads_share_a_head() -> None:
    plan = shipped("llama-3.3-70b-tp8.yaml", parallel__tensor=16)
    assert plan.kv_bytes_per_token_per_rank == 80 * 2 * 128 * 2
    assert plan.nodes == 2
    # Keys and values are held twice: 80 layers of two projections from 8192 to 1024.
    twice = 80 * 2 * 8192 * 1024 * 2
    assert plan.weight_bytes_per_rank == pytest.approx((70.55e9 * 2 + twice) / 16, rel=1e-3)


def test_experts_lie_whole_and_the_rest_is_cut() -> None:
    mixtral = shipped("mixtral-8x7b-ep2.yaml")
    assert mixtral.parameters == pytest.approx(46.70e9, rel=1e-3)
    assert (mixtral.experts, mixtral.ranks) == (4, 2)
    assert mixtral.weight_bytes_per_rank == pytest.approx(46.70e9, rel=1e-3)
    qwen = shipped("qwen3-235b-a22b-ep8.yaml")
    assert qwen.parameters == pytest.approx(235.09e9, rel=1e-3)
    assert qwen.experts == 16
    assert qwen.kv_bytes_per_token_per_rank == 94 * 2 * 128 * 2  # 4 heads on 8 ranks


def test_what_the_plan_of_deepseek_leaves_whole_is_counted() -> None:
    """Its attention, about 11 billion parameters, lies on every rank, and one latent a token in every cache."""
    config = Config.model_validate(
        {"model": {"path": "deepseek-ai/DeepSeek-V3", "dtype": "bfloat16"}, "parallel": {"expert": 32}}
    )
    plan = plan_capacity(config, Hardware(200_000_000_000, 8))
    assert plan.parameters == pytest.approx(671.03e9, rel=1e-3)
    assert 11e9 < plan.whole < 12.5e9
    assert plan.kv_bytes_per_token_per_rank == 61 * (512 + 64) * 2
    assert (plan.experts, plan.nodes) == (8, 4)
    assert plan.weight_bytes_per_rank == pytest.approx(2 * (plan.whole + (plan.parameters - plan.whole) / 32), rel=1e-3)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_plan_of_a_model_is_what_it_takes_when_loaded(name: str, tmp_path: Path) -> None:
    folder = save_random(name, tmp_path / "model")
    loaded = load_target(open_folder(folder, source=str(folder)), dtype="float32", device="cpu", threads=1)
    alone = tmp_path / "config alone"
    alone.mkdir()
    shutil.copy(folder / "config.json", alone)
    plan = plan_capacity(Config.model_validate({"model": {"path": str(alone), "device": "cpu"}}), Hardware(None, 1))
    assert plan.parameters == sum(parameter.numel() for parameter in loaded.model.parameters())
    assert plan.weight_bytes_per_rank == 4 * plan.parameters
    assert plan.kv_bytes_per_token_per_rank == kv_bytes_per_slot(
        probe_layers(loaded.model, loaded.device), loaded.dtype
    )


def test_a_drafter_in_processes_of_its_own_takes_nothing_of_rank_0() -> None:
    small = {"method": "draft_model", "path": str(golden("llama8"))}
    document = {"model": {"path": str(golden("llama8")), "dtype": "float32"}, "limits": {"context": 512}}
    plans = [
        plan_capacity(Config.model_validate(document | {"drafters": [small | more]}), Hardware(80_000_000, 1))
        for more in ({}, {"placement": {"replicas": 2}})
    ]
    beside, apart = (plan.drafters[0] for plan in plans)
    assert (beside.replicas, apart.replicas) == (0, 2)
    assert beside.weight_bytes == apart.weight_bytes == plans[0].weight_bytes
    assert plans[0].kv_tokens is not None
    assert plans[1].kv_tokens is not None
    assert plans[1].kv_tokens > 2 * plans[0].kv_tokens


def test_drafters_lie_on_rank_0() -> None:
    document = {
        "model": {"path": str(golden("llama8")), "device": "cpu", "dtype": "float32"},
        "parallel": {"tensor": 2},
        "drafters": [
            {"name": "all", "method": "auto"},
            {"name": "words", "method": "ngram"},
            {"name": "head", "method": "eagle3", "path": str(GOLDENS / "eagle3_d2t" / "drafter")},
            {"name": "older", "method": "eagle", "path": str(GOLDENS / "eagle1_bias" / "drafter")},
            {"name": "small", "method": "draft_model", "path": str(golden("llama8"))},
            {"name": "far", "method": "eagle3", "path": "nobody/knows-this-head"},
        ],
    }
    plan = plan_capacity(Config.model_validate(document), Hardware(None, 1))
    shares = {share.name: share for share in plan.drafters}
    assert shares["words"].weight_bytes == 0
    assert shares["small"].weight_bytes == 4 * plan.parameters
    assert shares["small"].kv_bytes_per_token == 2 * plan.kv_bytes_per_token_per_rank
    assert shares["head"].weight_bytes
    assert shares["head"].kv_bytes_per_token == 4 * (2 * 2 * 16 + 64 // 8)  # its own layer's, and a feature a block
    assert shares["head"].note == ""
    assert "target's lm_head" in shares["older"].note
    assert shares["far"].weight_bytes is None
    assert "nobody/knows-this-head" in shares["far"].note


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parallel__tensor": 7}, "64 query heads and 8 key/value heads a layer; expected one of 1, 2, 4, 8, 16"),
        ({"parallel__tensor": 1, "parallel__expert": 8}, "has no experts; use parallel.tensor: 8"),
        ({"model__quantization": "int8", "parallel__tensor": 1}, "counts unquantized weights"),
    ],
)
def test_a_model_that_can_not_be_cut_so(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shipped("llama-3.3-70b-tp8.yaml", **settings)


def test_experts_that_do_not_divide() -> None:
    with pytest.raises(ConfigError, match=r"parallel.expert is 3, but .* has 8 experts a layer; expected one of 1, 2"):
        shipped("mixtral-8x7b-ep2.yaml", parallel__expert=3)


def test_too_little_memory_names_what_would_fit() -> None:
    with pytest.raises(SetupError, match=r"needs 151\.8 GB .* 72\.0 GB .* parallel\.tensor: 4 fits"):
        shipped("llama-3.3-70b-tp8.yaml", parallel__tensor=1)
    with pytest.raises(SetupError, match="no number of ranks up to 64 fits"):
        plan_capacity(load_config(CONFIGS / "llama-3.3-70b-tp8.yaml", {}, {}).config, Hardware(1_000_000_000, 8))


def test_models_not_checked_on_several_ranks_are_refused_by_name() -> None:
    model = hf.meta_model(config_of("gpt_oss").to_dict())
    with pytest.raises(ConfigError, match="gpt_oss model, which was not checked on several ranks"):
        split_of(model, ParallelConfig(tensor=2), "x")


def test_sizes_that_are_not_known_are_asked_of_the_hub() -> None:
    assert known_config("nobody/x") is None
    with pytest.raises(SetupError, match=r"config\.json of nobody/x is not in the cache"):
        find_config("nobody/x")


def test_the_command_prints_integers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("plan", "draftwing.commands.plan:register", cli.GROUP)
    monkeypatch.setattr(cli, "found_commands", lambda: [point])
    file = str(CONFIGS / "llama-3.3-70b-tp8.yaml")
    assert cli.main(["plan", "-c", file, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    for key in ("parameters", "weight_bytes_per_rank", "kv_bytes_per_token_per_rank", "bundles", "nodes"):
        assert type(document[key]) is int, key
    assert document["placement_group"]["bundles"] == [{"CPU": 1.0, "GPU": 1.0}] * 8
    assert cli.main(["plan", "-c", file]) == 0
    assert "17.64 GB a rank" in capsys.readouterr().out
    assert cli.main(["plan", "-c", file, "--gpu-memory", "16"]) == 3
    assert "parallel.tensor: 16 fits" in capsys.readouterr().err
