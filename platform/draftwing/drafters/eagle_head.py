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
from draftwing.drafters.eagle_config import EagleConfig, said
from draftwing.drafters.feature_drafter import HeadRows
from draftwing.drafters.rope import Rope, Rotary, rotated
from draftwing.drafters.weights import Weights
from draftwing.engine import attention
from draftwing.engine.attention import KVShape
from draftwing.errors import ConfigError

LEGACY_NORMS = ("aux_norm_low", "aux_norm_mid", "aux_norm_high")


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


class Layer(nn.Module):
    """One decoder layer; norms that its checkpoint lacks are left out. ConfigError where sizes aren't the config's."""

    def __init__(self, weights: Weights, prefix: str, index: int, config: EagleConfig) -> None:
        super().__init__()
        self.layer_idx, self.config = index, config
        size, head, own = config.hidden_size, config.head_size, f"{prefix}.self_attn"
        queries, keys = config.heads * head, config.kv_heads * head
        self.wide = weights.shape(f"{own}.q_proj.weight")[1:] == (2 * size,)  # the embedding beside the hidden state
        inputs = (1 + self.wide) * size
        self.q = weights.linear(f"{own}.q_proj", inputs, queries, None)
        self.k, self.v = (weights.linear(f"{own}.{n}_proj", inputs, keys, None) for n in "kv")
        self.o = weights.linear(f"{own}.o_proj", queries, size, None)
        self.gate = weights.linear(f"{prefix}.mlp.gate_proj", size, None, None)
        self.up = weights.linear(f"{prefix}.mlp.up_proj", size, self.gate.out_features, None)
        self.down = weights.linear(f"{prefix}.mlp.down_proj", self.gate.out_features, size, None)
        self.q_norm, self.k_norm = (weights.norm(f"{own}.{n}_norm.weight", size=head) for n in "qk")
        self.after = weights.take(f"{prefix}.post_attention_layernorm.weight", size)
        before, of_hidden = f"{prefix}.input_layernorm.weight", f"{prefix}.hidden_norm.weight"
        if self.wide:
            self.of_embedding, self.of_hidden = weights.take(before, size), weights.take(of_hidden, size)
        else:
            self.before = weights.norm(before, of_hidden, size=size)

    def forward(self, x: Tensor, embedded: Tensor, rotary: Rotary, ctx: Any) -> Tensor:
        eps = self.config.eps
        if self.wide:
            normed = rms_norm(x, self.of_hidden, eps)
            taken = torch.cat([rms_norm(embedded, self.of_embedding, eps), normed], dim=-1)
            x = normed if self.config.norm_before_residual else x
        else:
            taken = rms_norm(x, self.before, eps)
        x = x + self._attend(taken, rotary, ctx)
        wide = rms_norm(x, self.after, eps)
        inner: Tensor = self.down(silu(self.gate(wide)) * self.up(wide))
        return x + inner

    def _attend(self, x: Tensor, rotary: Rotary, ctx: Any) -> Tensor:
        count, size, eps = len(x), self.config.head_size, self.config.eps
        q, k, v = (part(x).view(count, -1, size) for part in (self.q, self.k, self.v))
        q = rotated(rms_norm(q, self.q_norm, eps), rotary)
        k = rotated(rms_norm(k, self.k_norm, eps), rotary)
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
        self.hidden_size = self.width = config.hidden_size
        self._layers = nn.ModuleList(self._read_layers(weights))
        self.kv = [KVShape(config.kv_heads, config.head_size, config.head_size)] * len(self._layers)
        self._rope = Rope(config.rope, config.head_size, self.device)
        self._fc = weights.linear("fc", None, None, None) if "fc.weight" in weights else None
        self._pairs = not self._layers[0].wide  # EAGLE-1 joins embedding and hidden state by fc
        self._read_norms(weights, reader, target.hidden_size)
        own = weights.embedding(target, config.hidden_size)
        shared: Any = target.model
        self._embed = shared.get_input_embeddings() if own is None else lambda tokens: embedding(tokens, own)
        self._lm_head, self.target_ids = weights.head(target, config.hidden_size)
        reader.skip(name for name in ("t2d",) if name in weights)
        self._check(target)

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

    def _read_norms(self, weights: Weights, reader: CheckpointReader, width: int) -> None:
        """width: of a hidden state of the target."""
        flags = said(reader.config.get("eagle_config")) | said(reader.config)
        count = len(self.hidden_layers)
        self._norm = weights.norm("norm.weight", size=self.hidden_size)
        self._input_norm = weights.norm("input_norm.weight", size=count * width)
        names = [(f"fc_norm.{i}.weight", *(f"{n}.weight" for n in LEGACY_NORMS[i : i + 1])) for i in range(count)]
        norms = [weights.norm(*own, size=width) for own in names]
        self._fc_norms = [norm for norm in norms if norm is not None]
        if len(self._fc_norms) not in (0, count):
            raise ConfigError(f"the drafter has {len(self._fc_norms)} fc_norm tensors for {count} hidden states")
        for flag, there in (
            ("norm_before_fc", self._input_norm is not None),
            ("fc_norm", bool(self._fc_norms)),
            ("use_aux_norm", bool(self._fc_norms)),
        ):
            if bool(flags.get(flag)) != there and (flags.get(flag) or (there and flag in flags)):
                raise ConfigError(
                    f"the drafter's config.json has {flag} {flags.get(flag)!r}, which its tensors contradict"
                )

    def _check(self, target: TargetInfo) -> None:
        wanted = 2 * self.hidden_size if self._pairs else len(self.hidden_layers) * target.hidden_size
        if self._fc is not None and self._fc.weight.shape != (self.hidden_size, wanted):
            raise ConfigError(
                f"the drafter's fc.weight is {list(self._fc.weight.shape)}, but a target of hidden size "
                f"{target.hidden_size} with hidden states {list(self.hidden_layers)} needs {[self.hidden_size, wanted]}"
            )
        if self._fc is None and (self._pairs or wanted != self.hidden_size):
            raise ConfigError("the drafter's checkpoint has no fc.weight, so its target's hidden states don't fit it")

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
        rotary = self._rope(rows.positions, x)
        for layer in self._layers:
            x = layer(x, embedded, rotary, rows.ctx)
        return rms_norm(x, self._norm, self.config.eps) if self.config.norm_output else x

    def logits(self, recycled: Tensor) -> Tensor:
        if not self.config.norm_output:
            recycled = rms_norm(recycled, self._norm, self.config.eps)
        logits: Tensor = self._lm_head(recycled)
        return logits
