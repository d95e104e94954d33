"""Both dialects of a block drafter's configuration become the same settings, and what isn't known is refused."""

from __future__ import annotations

from typing import Any

import pytest

from draftwing.drafters.block_config import BlockConfig, read_config
from draftwing.errors import ConfigError

TRANSFORMER: dict[str, Any] = {
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
}
OWN = {**TRANSFORMER, "dflash_config": {"mask_token_id": 7, "block_size": 8, "target_layer_ids": [1, 3, 5]}}
SPECULATORS = {
    "speculators_model_type": "dflash",
    "transformer_layer_config": TRANSFORMER,
    "mask_token_id": 7,
    "block_size": 8,
    "aux_hidden_state_layer_ids": [2, 4, 6],
}


def read(config: dict[str, Any], method: str = "dflash", layers: int = 2) -> BlockConfig:
    return read_config(config, method=method, features=3, layers=layers, target_layers=8)


def test_both_dialects_mean_the_same() -> None:
    assert read(OWN) == read(SPECULATORS)
    assert read(OWN).hidden_layers == (2, 4, 6)


def test_block_size_stands_in_either_place() -> None:
    nested = {key: value for key, value in OWN["dflash_config"].items() if key != "block_size"}
    assert read({**OWN, "dflash_config": nested, "block_size": 6}).block_size == 6


@pytest.mark.parametrize(
    ("fields", "causal"),
    [
        ({}, (True, False)),
        ({"is_causal": False}, (False, False)),
        ({"is_causal": True}, (True, True)),
    ],
)
def test_a_sliding_layer_is_causal_unless_it_says_otherwise(fields: dict[str, Any], causal: tuple[bool, bool]) -> None:
    mixed = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
    found = read({**OWN, **mixed, **fields})
    assert found.causal == causal
    assert found.windows == (6, None)


@pytest.mark.parametrize(
    ("method", "flag", "causal"), [("dflash", None, True), ("dflash2", None, False), ("dflash", True, False)]
)
def test_sliding_layers_of_speculators(method: str, flag: bool | None, causal: bool) -> None:
    layers = {**TRANSFORMER, "layer_types": ["sliding_attention"] * 2, "sliding_window": 6}
    found = read({**SPECULATORS, "transformer_layer_config": layers, "sliding_window_non_causal": flag}, method)
    assert found.causal == (causal, causal)


@pytest.mark.parametrize(
    ("config", "slots"), [(OWN, 8), (SPECULATORS, 7), ({**SPECULATORS, "sample_from_anchor": True}, 8)]
)
def test_dspark_predicts_from_the_anchor_on_in_its_own_dialect(config: dict[str, Any], slots: int) -> None:
    assert read(config, "dspark").depth == slots


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"attention_sink_bias": True}, "attention_sink_bias is True"),
        ({"projector_type": "domino"}, "projector_type is 'domino'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope type 'longrope'"),
        ({"num_target_layers": 36}, "num_target_layers is 36, but the target has 8"),
        ({"layer_types": ["linear_attention"] * 2}, "'linear_attention'"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_window is None"),
        ({"block_size": 1, "dflash_config": {"mask_token_id": 7, "target_layer_ids": [1, 3, 5]}}, "block_size is 1"),
        (
            {"dflash_config": {"mask_token_id": 7, "block_size": 8, "target_layer_ids": [1, 3, 8]}},
            "states 0 to 8 for it",
        ),
        ({"dflash_config": {"mask_token_id": 7, "block_size": 8, "target_layer_ids": [1]}}, "fc takes 3"),
        ({"dflash_config": {"block_size": 8}}, "mask_token_id"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read({**OWN, **fields})
