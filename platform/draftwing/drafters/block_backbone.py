"""The network of the DFlash family: a few Qwen3-style layers that fill in a whole block in one pass.

Target features, projected and normed once, are extra keys and values of every layer, through the layer's own
projections; they receive no residual. A feature's keys and values therefore depend on it and its position alone, and
are kept in pages; a block's rows are attended once and forgotten. DFlash 2 adds a short convolution along the block
around attention and MLP. Formulas: DFlash and DFlash 2 (z-lab), DSpark (DeepSpec).

Shapes: G blocks, B rows of each, N rows in all, H hidden size, T taps, S slots a block reads, J key/value heads,
D head size.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad, rms_norm

from draftwing.core import IntArray
from draftwing.drafters.block_config import BlockConfig
from draftwing.drafters.rope import Rope, Rotary, rotated
from draftwing.drafters.weights import Weights
from draftwing.engine.attention import AttentionContext, DeviceGroup, attend
from draftwing.engine.batch import Group
from draftwing.errors import ConfigError

Pages = list[tuple[Tensor, Tensor]]


class Norm(nn.Module):
    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight, self._epsilon = weight, epsilon

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, (x.shape[-1],), self.weight, self._epsilon)


class BlockConv(nn.Module):
    """A causal convolution whose kernel depends on the row: `base` of every channel, plus one of every group.

    It runs along the block alone: what lies before its first row is zero.
    """

    def __init__(self, weights: Weights, name: str, size: int) -> None:
        super().__init__()
        self.base = weights.take(f"{name}.base_kernel", 2, None, size)
        self.kernel_projection = weights.linear(f"{name}.kernel_projection", size, None)
        sides, taps, _ = self.base.shape
        groups, rest = divmod(self.kernel_projection.out_features, sides * taps)
        if rest or size % groups:
            raise ConfigError(
                f"the drafter's {name}.kernel_projection gives {self.kernel_projection.out_features} numbers; expected "
                f"{sides * taps} for each group of channels, which divide {size}"
            )

    def kernels(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """y [G, B, H] -> what its sub-layer's input and its output are convolved with, both [G, B, T, H]."""
        sides, taps, size = self.base.shape
        coefficients = self.kernel_projection(y).view(*y.shape[:2], sides, taps, -1)
        kernels = coefficients.repeat_interleave(size // coefficients.shape[-1], -1) + self.base
        return kernels[:, :, 0], kernels[:, :, 1]

    @staticmethod
    def apply_kernel(x: Tensor, kernel: Tensor) -> Tensor:
        """Row t becomes the sum over taps j of kernel[t, j] * x[t - j]."""
        rows = x.shape[1]
        shifted = [pad(x, (0, 0, j, 0))[:, :rows] for j in range(kernel.shape[2])]
        return (kernel * torch.stack(shifted, 2)).sum(2)


class Attention(nn.Module):
    def __init__(self, weights: Weights, config: BlockConfig, layer: int) -> None:
        super().__init__()
        name, size, head, bias = f"layers.{layer}.self_attn", config.hidden_size, config.head_dim, config.attention_bias
        queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
        self.layer_idx = layer
        self._head = head
        self.q_proj = weights.linear(f"{name}.q_proj", size, queries, bias)
        self.k_proj = weights.linear(f"{name}.k_proj", size, keys, bias)
        self.v_proj = weights.linear(f"{name}.v_proj", size, keys, bias)
        self.o_proj = weights.linear(f"{name}.o_proj", queries, size, bias)
        self.q_norm = Norm(weights.take(f"{name}.q_norm.weight", head), config.rms_norm_eps)
        self.k_norm = Norm(weights.take(f"{name}.k_norm.weight", head), config.rms_norm_eps)

    def keys_values(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """x [N, H] -> both [N, J, D]"""
        keys = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self._head)))
        return rotated(keys, rotary), self.v_proj(x).unflatten(-1, (-1, self._head))

    def forward(self, x: Tensor, rotary: Rotary, context: AttentionContext) -> Tensor:
        queries = rotated(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self._head))), rotary)
        keys, values = (part.transpose(0, 1)[None] for part in self.keys_values(x, rotary))
        out, _ = attend(self, queries.transpose(0, 1)[None], keys, values, None, dw_ctx=context)
        return self.o_proj(out[0].flatten(1))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, weights: Weights, config: BlockConfig, index: int) -> None:
        from transformers.activations import ACT2FN

        super().__init__()
        name, size, epsilon = f"layers.{index}", config.hidden_size, config.rms_norm_eps
        self.input_norm = Norm(weights.take(f"{name}.input_layernorm.weight", size), epsilon)
        self.middle_norm = Norm(weights.take(f"{name}.post_attention_layernorm.weight", size), epsilon)
        self.attention = Attention(weights, config, index)
        self.gate_proj = weights.linear(f"{name}.mlp.gate_proj", size, None)
        self.up_proj = weights.linear(f"{name}.mlp.up_proj", size, self.gate_proj.out_features)
        self.down_proj = weights.linear(f"{name}.mlp.down_proj", self.gate_proj.out_features, size)
        convolved = f"{name}.attention_conv.base_kernel" in weights
        self.convs = nn.ModuleList(
            [BlockConv(weights, f"{name}.{part}_conv", size) for part in ("attention", "mlp")] if convolved else []
        )
        if config.hidden_act not in ACT2FN:
            raise ConfigError(f"the drafter's hidden_act is {config.hidden_act!r}; expected one of transformers'")
        self._activation = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor, rotary: Rotary, context: AttentionContext) -> Tensor:
        """x [G, B, H]"""

        def attention(y: Tensor) -> Tensor:
            return self.attention(y.flatten(0, 1), rotary, context).view_as(y)  # type: ignore[no-any-return]

        x = x + self._within(0, self.input_norm(x), attention)
        return x + self._within(1, self.middle_norm(x), self._mlp)

    def _within(self, conv: int, y: Tensor, inner: Any) -> Tensor:
        """A sub-layer, between the two sides of its convolution where there is one."""
        if not self.convs:
            return inner(y)  # type: ignore[no-any-return]
        before, after = self.convs[conv].kernels(y)  # type: ignore[operator]
        return BlockConv.apply_kernel(inner(BlockConv.apply_kernel(y, before)), after)

    def _mlp(self, y: Tensor) -> Tensor:
        return self.down_proj(self._activation(self.gate_proj(y)) * self.up_proj(y))  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Where a block is. start: position of its anchor. first: position of the first context row that is known.

    context: slots of positions first, first + 1, ... scratch [B]: slots for its own rows.
    """

    start: int
    first: int
    context: IntArray
    scratch: IntArray


class Backbone(nn.Module):
    """ConfigError where tensors and configuration disagree."""

    def __init__(self, weights: Weights, config: BlockConfig, target_hidden: int) -> None:
        super().__init__()
        self.config = config
        self.fc = weights.linear("fc", len(config.hidden_layers) * target_hidden, config.hidden_size)
        self.hidden_norm = Norm(weights.take("hidden_norm.weight", config.hidden_size), config.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(weights, config, i) for i in range(len(config.causal))])
        self.norm = Norm(weights.take("norm.weight", config.hidden_size), config.rms_norm_eps)
        self._rope = Rope(config.rope, config.head_dim, self.fc.weight.device)

    @property
    def kv_size(self) -> int:
        """Numbers kept of one context token."""
        return 2 * len(self.layers) * self.config.num_key_value_heads * self.config.head_dim

    def pages(self, slots: int) -> Pages:
        like, shape = self.fc.weight, (slots, self.config.num_key_value_heads, self.config.head_dim)
        return [(like.new_zeros(shape), like.new_zeros(shape)) for _ in self.layers]

    def write(self, features: Tensor, positions: IntArray, slots: IntArray, pages: Pages) -> None:
        """Keep context rows: features [N, n * H] of the target at these positions."""
        context, rotary = self.hidden_norm(self.fc(features)), self._rotary(positions)
        where = torch.from_numpy(slots).to(features.device)
        for layer, (keys, values) in zip(self.layers, pages, strict=True):
            keys[where], values[where] = layer.attention.keys_values(context, rotary)  # type: ignore[union-attr, operator]

    def forward(self, embedded: Tensor, places: Seq[BlockPlace], pages: Pages) -> Tensor:
        """embedded [G, B, H] -> hidden states of the blocks' rows [G, B, H], after the last norm."""
        rows = np.arange(self.config.block_size)
        rotary = self._rotary(np.concatenate([place.start + rows for place in places]))
        kinds = dict.fromkeys(zip(self.config.causal, self.config.windows, strict=True))
        contexts = {kind: attention_context(places, *kind, pages, embedded.device) for kind in kinds}
        x = embedded
        for layer, kind in zip(self.layers, zip(self.config.causal, self.config.windows, strict=True), strict=True):
            x = layer(x, rotary, contexts[kind])
        return self.norm(x)  # type: ignore[no-any-return]

    def _rotary(self, positions: IntArray) -> Rotary:
        weight = self.fc.weight
        return self._rope(torch.from_numpy(positions).to(weight.device), weight)


def attention_context(
    places: Seq[BlockPlace], causal: bool, window: int | None, pages: Pages, device: torch.device
) -> AttentionContext:
    """What the blocks' rows see in layers of one kind: the context within the window, and rows of their own block."""
    block = len(places[0].scratch)
    reach = [len(place.context) for place in places]
    if window is not None:
        ends = [place.first + len(place.context) - place.start for place in places]
        reach = [min(size, max(end + window - 1, 0)) for size, end in zip(reach, ends, strict=True)]
    longest = max(reach) + block
    slots = np.empty((len(places), longest), dtype=np.int64)
    key_pos = np.zeros_like(slots)
    real = np.zeros(slots.shape, dtype=np.bool_)
    for i, (place, near) in enumerate(zip(places, reach, strict=True)):
        size, end = near + block, place.first + len(place.context)
        slots[i, :near] = place.context[len(place.context) - near :]
        slots[i, near:size] = place.scratch
        slots[i, size:] = place.scratch[0]
        key_pos[i, :near] = np.arange(end - near, end)
        key_pos[i, near:size] = np.arange(place.start, place.start + block)
        real[i, :size] = True
    query_pos = np.array([p.start for p in places], dtype=np.int64)[:, None] + np.arange(block)
    ahead = key_pos[:, None, :] - query_pos[:, :, None]
    visible = np.broadcast_to(real[:, None, :], ahead.shape).copy()
    if causal:
        visible &= ahead <= 0
    if window is not None:
        visible &= np.abs(ahead) < window
    rows = np.arange(len(places) * block, dtype=np.int64).reshape(-1, block)
    group = Group(rows, np.ones(rows.shape, dtype=np.bool_), slots, visible, query_pos, key_pos)
    own = torch.from_numpy(np.concatenate([place.scratch for place in places])).to(device)
    return AttentionContext(pages, own, [DeviceGroup(group, None, None)])
