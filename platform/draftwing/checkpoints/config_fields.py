"""The fields of a published config.json that decide what a checkpoint is and how large: of the right type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftwing.errors import ConfigError
from draftwing.limits import shown

Size = Annotated[int, Field(ge=1)] | None


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
    rms_norm_eps: float | None = None
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    layer_types: list[str] | None = None
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
