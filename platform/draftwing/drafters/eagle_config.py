"""What an EAGLE checkpoint's config.json says, whoever wrote it: SafeAILab, SpecForge, DeepSpec or speculators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwing.errors import ConfigError

UNSUPPORTED_ROPE = ("dynamic", "longrope")
NEVER_SAVED = 10000.0  # rope_theta where a config is silent


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """dims: the transformer's own fields. uses_aux: EAGLE-3 takes hidden states of several layers, not the last."""

    dims: Mapping[str, Any]
    eps: float
    heads: int
    kv_heads: int
    head_size: int
    rope: dict[str, Any]
    norm_before_residual: bool
    norm_output: bool
    uses_aux: bool


def read_eagle_config(config: Mapping[str, Any], rope_theta: float | None = None) -> EagleConfig:
    """ConfigError where a size is missing or a rope type would make keys depend on the whole sequence."""
    dims = config.get("transformer_layer_config") or config
    nested = config.get("eagle_config") or {}
    speculators = config.get("speculators_model_type") is not None
    hidden, heads = _size(dims, "hidden_size"), _size(dims, "num_attention_heads")
    if (act := dims.get("hidden_act", "silu")) != "silu":
        raise ConfigError(f"the drafter's config.json has hidden_act {act!r}; expected 'silu'")
    # SpecForge writes norm_output too, and means the norm before its head by it.
    means_recycling = "LlamaForCausalLMEagle3" not in (config.get("architectures") or ())
    return EagleConfig(
        dims=dims,
        eps=float(dims.get("rms_norm_eps", 1e-6)),
        heads=heads,
        kv_heads=int(dims.get("num_key_value_heads") or heads),
        head_size=int(dims.get("head_dim") or hidden // heads),
        rope=_rope(dims, rope_theta),
        norm_before_residual=bool(config.get("norm_before_residual", nested.get("norm_before_residual", speculators))),
        norm_output=bool(nested.get("norm_output", means_recycling and config.get("norm_output", False))),
        uses_aux=bool(nested.get("use_aux_hidden_state", True)),
    )


def _size(dims: Mapping[str, Any], name: str) -> int:
    if type(value := dims.get(name)) is not int or value < 1:
        raise ConfigError(f"the drafter's config.json has {name} {value!r}; expected a positive number")
    return value


def _rope(dims: Mapping[str, Any], theta: float | None) -> dict[str, Any]:
    rope = {**(dims.get("rope_scaling") or {}), **(dims.get("rope_parameters") or {})}
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type") or "default"
    rope["rope_theta"] = float(theta or rope.get("rope_theta") or dims.get("rope_theta") or NEVER_SAVED)
    if rope["rope_type"] in UNSUPPORTED_ROPE:
        raise ConfigError(
            f"the drafter's config.json has rope type {rope['rope_type']!r}, whose frequencies depend on the whole "
            "sequence; accepted: default, linear, yarn, llama3"
        )
    return rope
