"""The network of EAGLE heads, version 1 to 3.1: what differs between them is which tensors are there.

Li et al.: EAGLE (2024), EAGLE-3 (2025). Shapes: N rows, H hidden size of the head, H_t of the target, V_d vocabulary
of the head, A layers of the target whose hidden states it takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, silu

from draftwing.drafters.base import CheckpointReader, TargetInfo
from draftwing.drafters.eagle_config import EagleConfig
from draftwing.drafters.feature_drafter import HeadRows
from draftwing.drafters.weights import Weights, linear_of
from draftwing.engine import attention
from draftwing.engine.attention import KVShape
from draftwing.errors import ConfigError

LEGACY_NORMS = ("aux_norm_low", "aux_norm_mid", "aux_norm_high")


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


class Rope:
    """Cosines and sines [N, head size] of positions [N]."""

    def __init__(self, config: EagleConfig, device: torch.device) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        limit = int(config.dims.get("max_position_embeddings", 2048))
        fields: dict[str, Any] = {
            "hidden_size": config.heads * config.head_size,
            "head_dim": config.head_size,
            "num_attention_heads": config.heads,
            "max_position_embeddings": limit,
            "rope_parameters": config.rope,
        }
        llama = LlamaConfig(**fields)
        self._rotary = LlamaRotaryEmbedding(llama).to(device)

    def __call__(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self._rotary(like, positions[None])
        return cos[0], sin[0]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [N, heads, size]"""
    low, high = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat([-high, low], dim=-1) * sin[:, None]


class Layer(nn.Module):
    """One decoder layer; norms that its checkpoint lacks are left out."""

    def __init__(self, weights: Weights, prefix: str, index: int, config: EagleConfig) -> None:
        super().__init__()
        self.layer_idx, self.config = index, config
        names = ("q", "k", "v", "o")
        self.q, self.k, self.v, self.o = (
            weights.linear(f"{prefix}.self_attn.{n}_proj", None, None, None) for n in names
        )
        self.gate, self.up, self.down = (
            weights.linear(f"{prefix}.mlp.{n}_proj", None, None, None) for n in ("gate", "up", "down")
        )
        self.q_norm = weights.get(f"{prefix}.self_attn.q_norm.weight")
        self.k_norm = weights.get(f"{prefix}.self_attn.k_norm.weight")
        self.after = weights.take(f"{prefix}.post_attention_layernorm.weight", None)
        self.wide = self.q.weight.shape[1] == 2 * len(self.o.weight)  # takes the embedding beside the hidden state
        if self.wide:
            self.of_embedding = weights.take(f"{prefix}.input_layernorm.weight", None)
            self.of_hidden = weights.take(f"{prefix}.hidden_norm.weight", None)
        else:
            self.before = weights.get(f"{prefix}.input_layernorm.weight", f"{prefix}.hidden_norm.weight")

    def forward(self, x: Tensor, embedded: Tensor, cos: Tensor, sin: Tensor, ctx: Any) -> Tensor:
        eps = self.config.eps
        if self.wide:
            normed = rms_norm(x, self.of_hidden, eps)
            taken = torch.cat([rms_norm(embedded, self.of_embedding, eps), normed], dim=-1)
            x = normed if self.config.norm_before_residual else x
        else:
            taken = rms_norm(x, self.before, eps)
        x = x + self._attend(taken, cos, sin, ctx)
        wide = rms_norm(x, self.after, eps)
        inner: Tensor = self.down(silu(self.gate(wide)) * self.up(wide))
        return x + inner

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor, ctx: Any) -> Tensor:
        count, size, eps = len(x), self.config.head_size, self.config.eps
        q, k, v = (part(x).view(count, -1, size) for part in (self.q, self.k, self.v))
        q = rotate(rms_norm(q, self.q_norm, eps), cos, sin)
        k = rotate(rms_norm(k, self.k_norm, eps), cos, sin)
        query, key, value = (part.transpose(0, 1)[None] for part in (q, k, v))
        out, _ = attention.attend(self, query, key, value, None, dw_ctx=ctx)
        joined: Tensor = self.o(out[0].reshape(count, -1))
        return joined


class EagleHead(nn.Module):
    """A `Head` (see `feature_drafter`) read from a checkpoint. ConfigError where it doesn't fit the target."""

    def __init__(
        self, reader: CheckpointReader, target: TargetInfo, config: EagleConfig, hidden_layers: tuple[int, ...]
    ) -> None:
        if target.model is None:
            raise ConfigError("an EAGLE drafter runs beside its target; give it no placement of its own")
        super().__init__()
        self.dtype, self.device = getattr(torch, target.dtype), torch.device(target.device)
        weights = Weights(reader, self.device, self.dtype, {})
        self.config, self.hidden_layers = config, hidden_layers
        self.hidden_size = self.width = int(config.dims["hidden_size"])
        self._layers = nn.ModuleList(self._read_layers(weights))
        self.kv = [KVShape(config.kv_heads, config.head_size, config.head_size)] * len(self._layers)
        self._rope = Rope(config, self.device)
        self._fc = weights.linear("fc", None, None, None) if "fc.weight" in weights else None
        self._pairs = not self._layers[0].wide  # EAGLE-1 joins embedding and hidden state by fc
        self._read_norms(weights, reader)
        own = weights.get("embed_tokens.weight")
        shared: Any = target.model
        self._embed = shared.get_input_embeddings() if own is None else lambda tokens: embedding(tokens, own)
        self._read_vocabulary(weights, reader, target)
        self._check(target, own)

    def _read_layers(self, weights: Weights) -> list[Layer]:
        prefixes = ["midlayer"] if "midlayer.self_attn.q_proj.weight" in weights else []
        while f"layers.{len(prefixes)}.self_attn.q_proj.weight" in weights:
            prefixes.append(f"layers.{len(prefixes)}")
        if not prefixes:
            raise ConfigError(
                "the drafter's checkpoint has neither midlayer.self_attn.q_proj.weight nor "
                "layers.0.self_attn.q_proj.weight, so it is no EAGLE head of the Llama kind"
            )
        return [Layer(weights, prefix, i, self.config) for i, prefix in enumerate(prefixes)]

    def _read_norms(self, weights: Weights, reader: CheckpointReader) -> None:
        flags = {**(reader.config.get("eagle_config") or {}), **reader.config}
        count = len(self.hidden_layers)
        self._norm = weights.get("norm.weight")
        self._input_norm = weights.get("input_norm.weight")
        norms = [
            weights.get(f"fc_norm.{i}.weight", *(f"{n}.weight" for n in LEGACY_NORMS[i : i + 1])) for i in range(count)
        ]
        self._fc_norms = [norm for norm in norms if norm is not None]
        for flag, there in (
            ("norm_before_fc", self._input_norm is not None),
            ("fc_norm", len(self._fc_norms) == count),
        ):
            if bool(flags.get(flag)) != there and (flags.get(flag) or (there and flag in flags)):
                raise ConfigError(
                    f"the drafter's config.json has {flag} {flags.get(flag)!r}, which its tensors contradict"
                )

    def _read_vocabulary(self, weights: Weights, reader: CheckpointReader, target: TargetInfo) -> None:
        head = weights.get("lm_head.weight")
        shared: Any = target.model
        self._lm_head: nn.Module = shared.get_output_embeddings() if head is None else linear_of(head, None)
        reader.skip(name for name in ("t2d",) if name in weights)
        size = target.vocab_size if head is None else len(head)
        self.target_ids = weights.target_ids(size, target.vocab_size)
        if self.target_ids is None and size < target.vocab_size:
            raise ConfigError(
                f"the drafter knows {size} tokens, its target {target.vocab_size}, and it has no d2t that maps them"
            )

    def _check(self, target: TargetInfo, own: Tensor | None) -> None:
        wanted = 2 * self.hidden_size if self._pairs else len(self.hidden_layers) * target.hidden_size
        if self._fc is not None and self._fc.weight.shape != (self.hidden_size, wanted):
            raise ConfigError(
                f"the drafter's fc.weight is {list(self._fc.weight.shape)}, but a target of hidden size "
                f"{target.hidden_size} with hidden states {list(self.hidden_layers)} needs {[self.hidden_size, wanted]}"
            )
        if self._fc is None and (self._pairs or wanted != self.hidden_size):
            raise ConfigError("the drafter's checkpoint has no fc.weight, so its target's hidden states don't fit it")
        if (own is not None and own.shape[1] != self.hidden_size) or (
            own is None and target.hidden_size != self.hidden_size
        ):
            raise ConfigError(
                f"the drafter's hidden size is {self.hidden_size}, its embeddings' "
                f"{target.hidden_size if own is None else own.shape[1]}; they must be the same"
            )

    def fuse(self, features: tuple[Tensor, ...]) -> Tensor:
        if self._fc_norms:
            features = tuple(
                rms_norm(x, norm, self.config.eps) for x, norm in zip(features, self._fc_norms, strict=True)
            )
        joined = rms_norm(torch.cat(features, dim=-1), self._input_norm, self.config.eps)
        return joined if self._pairs or self._fc is None else self._fc(joined)

    def forward(self, rows: HeadRows, hidden: Tensor) -> Tensor:
        embedded = self._embed(rows.tokens).to(self.dtype)
        x = hidden
        if self._pairs and self._fc is not None:
            x = self._fc(torch.cat([embedded, hidden], dim=-1))
        cos, sin = self._rope(rows.positions, x)
        for layer in self._layers:
            x = layer(x, embedded, cos, sin, rows.ctx)
        return rms_norm(x, self._norm, self.config.eps) if self.config.norm_output else x

    def logits(self, recycled: Tensor) -> Tensor:
        if not self.config.norm_output:
            recycled = rms_norm(recycled, self._norm, self.config.eps)
        logits: Tensor = self._lm_head(recycled)
        return logits
