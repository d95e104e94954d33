"""What an EAGLE config says, in every dialect."""

from __future__ import annotations

from typing import Any

import pytest

from draftwing.drafters.eagle_config import read_eagle_config
from draftwing.errors import ConfigError

DIMS = {"hidden_size": 64, "num_attention_heads": 4}


def test_flags_mean_what_their_writer_meant() -> None:
    assert not read_eagle_config(DIMS).norm_before_residual
    assert read_eagle_config({**DIMS, "speculators_model_type": "eagle3"}).norm_before_residual
    assert read_eagle_config({**DIMS, "norm_output": True}).norm_output
    assert not read_eagle_config({**DIMS, "norm_output": True, "architectures": ["LlamaForCausalLMEagle3"]}).norm_output


def test_rope() -> None:
    def theta(more: dict[str, Any], override: float | None = None) -> Any:
        return read_eagle_config({**DIMS, **more}, override).rope["rope_parameters"]["rope_theta"]

    assert theta({}) == theta({"rope_theta": None}) == 10000
    assert theta({"rope_theta": 5e5}) == 5e5
    assert theta({"rope_parameters": {"rope_theta": 7.0}}) == 7
    assert theta({"rope_theta": 5e5}, 3.0) == 3
    with pytest.raises(ConfigError, match="rope type 'dynamic'"):
        read_eagle_config({**DIMS, "rope_scaling": {"type": "dynamic", "factor": 2.0}})


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_act": "gelu"},
        {"hidden_size": None},
        {"num_attention_heads": 0},
        {"num_key_value_heads": 3},
        {"head_dim": 5},
        {"partial_rotary_factor": 0.5},
    ],
)
def test_what_the_head_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        read_eagle_config({**DIMS, **wrong})
