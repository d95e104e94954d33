"""Multi-head latent attention (DeepSeek-V3): a page holds one latent and one rotary key a token, shared by all heads.

The model projects a latent up to a key and a value for every head, which is linear: so the key's half of the projection
is applied to the queries instead and the value's half to what attention returns, and the context is never projected.
Attention then is that of one key/value head, whose keys are latent and rotary key side by side, and whose values are
the latents (`benchmarks/attention_cost.py` shows the cost of both ways).

Shapes: N rows in the ragged batch, H query heads, C latent size, P sizes of a key's plain part, R of its rotary part,
D = P + R, E of a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class LatentCache:
    """What the model takes for its cache: writes each new latent and rotary key to the pages of the call's context."""

    def update(self, latent: Tensor, rotary: Tensor, layer: int, *, kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """latent [1, 1, N, C], rotary [1, 1, N, R].

        Returns one row of both: what the model projects up from it is not used, and it can't project none.
        """
        kwargs["dw_ctx"].write_latents(layer, torch.cat([latent[0, 0], rotary[0, 0]], dim=-1))
        return latent[:, :, :1], rotary[:, :, :1]


@dataclass(frozen=True, slots=True)
class Latent:
    """How an attention layer compresses. size: C. rotary: R. plain: P."""

    size: int
    rotary: int
    plain: int
    projection: nn.Module

    @classmethod
    def of(cls, module: nn.Module) -> Latent | None:
        """None for a layer that keeps keys and values per head."""
        if not hasattr(
            module, "expand_kv"
        ):  # transformers' name for projecting up, after the cache; remote code lacks it
            return None
        own: Any = module
        return cls(own.kv_lora_rank, own.qk_rope_head_dim, own.qk_nope_head_dim, own.kv_b_proj)

    def _weight(self, heads: int) -> Tensor:
        """[H, P + E, C]"""
        weight: Any = self.projection.weight
        view: Tensor = weight.view(heads, -1, self.size)
        return view

    def queries(self, query: Tensor) -> Tensor:
        """query [1, H, N, D] -> queries of the latents [1, H, N, C + R]."""
        plain, rotary = query[..., : self.plain], query[..., self.plain :]
        return torch.cat([torch.matmul(plain, self._weight(query.shape[1])[:, : self.plain]), rotary], dim=-1)

    def values(self, output: Tensor) -> Tensor:
        """Attention's mean latent of each row and head [1, N, H, C or more] -> its mean value [1, N, H, E]."""
        up = self._weight(output.shape[2])[:, self.plain :].transpose(1, 2)
        return torch.matmul(output[..., : self.size].transpose(1, 2), up).transpose(1, 2)
