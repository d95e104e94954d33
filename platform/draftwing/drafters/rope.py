"""Rotary positions of published heads: transformers' own numbers. N rows, D head size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from draftwing.errors import ConfigError

Rotary = tuple[Tensor, Tensor]


class Rope:
    """settings: as `config_fields.rope_of` gives them. ConfigError where they are not whole."""

    def __init__(self, settings: Mapping[str, Any], size: int, place: torch.device) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        try:
            config = LlamaConfig(hidden_size=size, head_dim=size, num_attention_heads=1, **settings)
            self._rotary = LlamaRotaryEmbedding(config).to(place)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the drafter's rope settings {settings['rope_parameters']} are no such: {error}"
            ) from error

    def __call__(self, positions: Tensor, like: Tensor) -> Rotary:
        """Cosines and sines [N, 1, D] of positions [N]."""
        cos, sin = self._rotary(like, positions[None])
        return cos[0][:, None], sin[0][:, None]


def rotated(x: Tensor, rotary: Rotary) -> Tensor:
    """x [N, heads, D]"""
    cos, sin = rotary
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin
