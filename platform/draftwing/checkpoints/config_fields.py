"""The fields of a published config.json that decide what a checkpoint is and how large: of the right type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftwing.errors import ConfigError
from draftwing.limits import shown

UNSUPPORTED_ROPE = ("dynamic", "longrope")
NEVER_SAVED = 10000.0  # rope_theta where a config is silent
Size = Annotated[int, Field(ge=1)] | None
Positive = Annotated[float, Field(gt=0)] | None
Layers = list[int] | None


class _Fields(BaseModel):
    """Null is as good as absent; other fields are their readers' business."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())

    architectures: list[str] | None = None
    model_type: str | None = None
    speculators_model_type: str | None = None
    num_hidden_layers: Annotated[int, Field(ge=0)] | None = None
    num_target_layers: Size = None
    hidden_size: Size = None
    num_attention_heads: Size = None
    num_key_value_heads: Size = None
    head_dim: Size = None
    max_position_embeddings: Size = None
    rms_norm_eps: Positive = None
    rope_theta: Positive = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    layer_types: list[str] | None = None
    eagle_aux_hidden_state_layer_ids: Layers = None
    aux_hidden_state_layer_ids: Layers = None
    target_layer_ids: Layers = None
    dspark_target_layer_ids: Layers = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    norm_output: bool | None = None
    fc_norm: bool | None = None
    use_aux_norm: bool | None = None
    use_aux_hidden_state: bool | None = None
    n_layer: Size = None
    n_embd: Size = None
    n_head: Size = None
    text_config: _Fields | None = None
    transformer_layer_config: _Fields | None = None
    eagle_config: _Fields | None = None
    dflash_config: _Fields | None = None
    dspark_config: _Fields | None = None


def check_fields(config: Mapping[str, Any], where: str) -> None:
    """ConfigError names the first field of a wrong type."""
    try:
        _Fields.model_validate(dict(config))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{where}: its config.json has {key} {shown(first['input'])}; {first['msg'].lower()}"
        ) from error


def rope_of(dims: Mapping[str, Any], theta: float | None = None) -> dict[str, Any]:
    """dims: a transformer's fields, old ones or transformers 5's. theta: instead of theirs. ConfigError: unsupported.

    Of the result, `max_position_embeddings` is the longest context it was trained for.
    """
    rope = {**(dims.get("rope_scaling") or {}), **(dims.get("rope_parameters") or {})}
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type") or "default"
    rope["rope_theta"] = float(theta or rope.get("rope_theta") or dims.get("rope_theta") or NEVER_SAVED)
    if rope["rope_type"] in UNSUPPORTED_ROPE:
        raise ConfigError(
            f"the drafter's config.json has rope type {rope['rope_type']!r}, whose frequencies depend on the whole "
            "sequence; accepted: default, linear, yarn, llama3"
        )
    if (part := rope.get("partial_rotary_factor", dims.get("partial_rotary_factor"))) not in (None, 1):
        raise ConfigError(f"the drafter's config.json has partial_rotary_factor {part!r}; expected 1")
    return {"rope_parameters": rope, "max_position_embeddings": dims.get("max_position_embeddings") or 2048}


def check_heads(heads: int, kv_heads: int, size: int) -> None:
    """ConfigError where attention heads of a drafter can't share those of keys and values, or be rotated."""
    if heads % kv_heads or size % 2:
        raise ConfigError(
            f"the drafter's config.json has num_attention_heads {heads}, num_key_value_heads {kv_heads} and head_dim "
            f"{size}; expected an even head_dim, and a multiple of num_key_value_heads"
        )
