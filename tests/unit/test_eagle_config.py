"""What an EAGLE config says, in every dialect."""

from __future__ import annotations

from typing import Any

import pytest

from draftwing.drafters.eagle_config import read_eagle_config, resolve_layers
from draftwing.errors import ConfigError

IDS = "eagle_aux_hidden_state_layer_ids"
DIMS = {"hidden_size": 64, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("config", "override", "layers"),
    [
        ({}, None, (2, 16, 29)),
        ({IDS: None}, None, (2, 16, 29)),
        ({IDS: [1, 17, 31]}, None, (1, 17, 31)),
        ({"eagle_config": {IDS: [1, 17, 28]}}, None, (2, 18, 29)),
        ({"eagle_config": {IDS: [2, 16, 29]}}, None, (2, 16, 29)),
        ({"target_layer_ids": [-1, 9, 17]}, None, (0, 10, 18)),
        ({IDS: [1, 2, 3]}, (4, 5, 6), (4, 5, 6)),
    ],
)
def test_layers(config: dict[str, Any], override: tuple[int, ...] | None, layers: tuple[int, ...]) -> None:
    assert resolve_layers(config, 32, override) == layers


@pytest.mark.parametrize("config", [{IDS: [2, 16, 32]}, {"eagle_config": {IDS: [24, 30, 32]}}])
def test_layers_that_are_not_there_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"the target has 0 to 31 before its final norm; name them with"):
        resolve_layers(config, 32)


def test_flags_mean_what_their_writer_meant() -> None:
    assert not read_eagle_config(DIMS).norm_before_residual
    assert read_eagle_config({**DIMS, "speculators_model_type": "eagle3"}).norm_before_residual
    assert read_eagle_config({**DIMS, "norm_output": True}).norm_output
    assert not read_eagle_config({**DIMS, "norm_output": True, "architectures": ["LlamaForCausalLMEagle3"]}).norm_output


def test_rope() -> None:
    assert read_eagle_config(DIMS).rope["rope_theta"] == 10000
    assert read_eagle_config({**DIMS, "rope_theta": 5e5}).rope["rope_theta"] == 5e5
    assert read_eagle_config({**DIMS, "rope_parameters": {"rope_theta": 7.0}}).rope["rope_theta"] == 7
    assert read_eagle_config({**DIMS, "rope_theta": 5e5}, rope_theta=3.0).rope["rope_theta"] == 3
    with pytest.raises(ConfigError, match="rope type 'dynamic'"):
        read_eagle_config({**DIMS, "rope_scaling": {"type": "dynamic", "factor": 2.0}})


@pytest.mark.parametrize("wrong", [{"hidden_act": "gelu"}, {"hidden_size": None}, {"num_attention_heads": 0}])
def test_what_the_head_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        read_eagle_config({**DIMS, **wrong})
