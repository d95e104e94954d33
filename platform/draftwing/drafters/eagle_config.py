"""What an EAGLE checkpoint's config.json says, whoever wrote it: SafeAILab, SpecForge, DeepSpec or speculators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwing.checkpoints.config_fields import check_heads, rope_of
from draftwing.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """dims: the transformer's own fields. uses_aux: EAGLE-3 takes hidden states of several layers, not the last."""

    dims: Mapping[str, Any]
    eps: float
    hidden_size: int
    heads: int
    kv_heads: int
    head_size: int
    rope: dict[str, Any]
    norm_before_residual: bool
    norm_output: bool
    uses_aux: bool


def read_eagle_config(config: Mapping[str, Any], rope_theta: float | None = None) -> EagleConfig:
    """ConfigError where a size is missing or a rope type would make keys depend on the whole sequence."""
    nested, dims = said(config.get("eagle_config")), said(config.get("transformer_layer_config") or config)
    config = said(config)
    hidden, heads = _size(dims, "hidden_size"), _size(dims, "num_attention_heads")
    if (act := dims.get("hidden_act", "silu")) != "silu":
        raise ConfigError(f"the drafter's config.json has hidden_act {act!r}; expected 'silu'")
    kv_heads, head_size = dims.get("num_key_value_heads", heads), dims.get("head_dim", hidden // heads)
    check_heads(heads, kv_heads, head_size)
    speculators = "speculators_model_type" in config
    # SpecForge writes norm_output too, and means the norm before its head by it.
    means_recycling = "LlamaForCausalLMEagle3" not in (config.get("architectures") or ())
    return EagleConfig(
        dims=dims,
        eps=dims.get("rms_norm_eps", 1e-6),
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        rope=rope_of(dims, rope_theta),
        norm_before_residual=bool(config.get("norm_before_residual", nested.get("norm_before_residual", speculators))),
        norm_output=bool(nested.get("norm_output", means_recycling and config.get("norm_output", False))),
        uses_aux=bool(nested.get("use_aux_hidden_state", True)),
    )


def said(part: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a part of a configuration says: null says nothing."""
    return {name: value for name, value in (part or {}).items() if value is not None}


def _size(dims: Mapping[str, Any], name: str) -> int:
    if type(value := dims.get(name)) is not int or value < 1:
        raise ConfigError(f"the drafter's config.json has {name} {value!r}; expected a positive number")
    return value
