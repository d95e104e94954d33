"""One attention function for every model of transformers: writes a step's keys and values to our pages and attends.

Registered with `AttentionInterface` and absent from `AttentionMaskInterface`, so transformers builds no mask and hands
every variation of a layer (scaling, sliding window, soft cap, sinks) to us as a keyword.

Shapes: N rows in the ragged batch, G sequences of a group, R its padded rows, S its padded slots, H query heads,
J key/value heads, Q = H / J, D size of a key, E of a value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from draftwing.engine.batch import BoolArray, Group, RaggedBatch, within
from draftwing.engine.latent import Latent

NAME = "draftwing"


@dataclass(slots=True)
class View:
    """What the layers of one window read of a group. mask: additive [G, 1, Q * R, S] for each Q asked for, None where
    every row sees every slot. slots [G * S]: a slice where they are contiguous, which saves a copy."""

    slots: Tensor | slice
    visible: BoolArray
    masks: dict[int, Tensor | None] = field(default_factory=dict)

    def read(self, pages: Tensor) -> Tensor:
        """pages [slots, J, D] -> [G, J, S, D]. index_select copies whole rows, on a CPU twice as fast as indexing."""
        read = pages[self.slots] if isinstance(self.slots, slice) else pages.index_select(0, self.slots)
        return read.view(len(self.visible), -1, *pages.shape[1:]).transpose(1, 2)

    def mask(self, shared: int, like: Tensor) -> Tensor | None:
        """The mask for `shared` query heads to a key head, made once a step."""
        if shared not in self.masks:
            if self.visible.all():
                self.masks[shared] = None
            else:
                seen = torch.from_numpy(self.visible).to(like.device)
                mask = torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(~seen, float("-inf"))
                self.masks[shared] = mask.repeat(1, shared, 1).unsqueeze(1)
        return self.masks[shared]


@dataclass(slots=True)
class DeviceGroup:
    """A Group on the model's device; views: by the layers' window, None for full attention."""

    source: Group
    rows: Tensor | None  # [G * R], None: the group is the whole batch in order, unpadded
    pick: Tensor | None  # [n] padded place of each real row, None when nothing is padded
    views: dict[int | None, View] = field(default_factory=dict)

    def view(self, window: int | None, device: torch.device) -> View:
        if window not in self.views:
            seen = self.source if window is None else within(self.source, window)
            slots: Tensor | slice | None = _contiguous(seen.slots)
            if slots is None:
                slots = torch.from_numpy(seen.slots.reshape(-1)).to(device, non_blocking=True)
            self.views[window] = View(slots, seen.visible)
        return self.views[window]


@dataclass(slots=True)
class AttentionContext:
    """What attention needs in one forward: where to write, what to read, what each row may see.

    pages: per layer (keys [slots, J, D], values [slots, J, E]); latents have E = 0 (`latent.py`).
    """

    pages: list[tuple[Tensor, Tensor]]
    write_slots: Tensor
    groups: list[DeviceGroup]

    def write_latents(self, layer: int, latents: Tensor) -> None:
        """latents [N, D]"""
        self.pages[layer][0][self.write_slots] = latents[:, None]


@dataclass(frozen=True, slots=True)
class KVShape:
    """Keys and values of one layer: heads J and their sizes. value_size 0: latents, whose values are in the keys."""

    heads: int
    key_size: int
    value_size: int


@dataclass(slots=True)
class ShapeProbe:
    """Stands in for a context to learn each layer's shapes: `attend` records them and returns zeros."""

    shapes: dict[int, KVShape] = field(default_factory=dict)

    def take(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        shape = KVShape(key.shape[1], key.shape[-1], value.shape[-1])
        if latent := Latent.of(module):
            shape = KVShape(1, latent.size + latent.rotary, 0)
        self.shapes[int(module.layer_idx)] = shape  # type: ignore[arg-type]
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1])


def _contiguous(slots: np.ndarray[Any, Any]) -> slice | None:
    first, last = int(slots[0, 0]), int(slots[0, -1])
    if len(slots) == 1 and last - first == slots.shape[1] - 1 and bool((np.diff(slots[0]) == 1).all()):
        return slice(first, last + 1)
    return None


def prepare(batch: RaggedBatch, pages: list[tuple[Tensor, Tensor]], device: torch.device) -> AttentionContext:
    """Move a batch's index arrays to the device."""

    def on_device(array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

    groups = []
    for group in batch.groups:
        padded = not bool(group.real.all())
        flat = group.rows.reshape(-1)
        whole = not padded and len(flat) == len(batch.tokens) and bool((np.diff(flat) == 1).all())
        groups.append(
            DeviceGroup(
                source=group,
                rows=None if whole else on_device(flat),
                pick=on_device(np.nonzero(group.real.reshape(-1))[0]) if padded else None,
            )
        )
    return AttentionContext(pages, on_device(batch.write_slots), groups)


def _softcapped(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """Attention with capped scores (Gemma 2) or a learned sink logit per query head (gpt-oss)."""
    scores = torch.matmul(q, k.transpose(-1, -2)) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is None:
        return torch.matmul(scores.softmax(-1, dtype=torch.float32).to(v.dtype), v)
    g, j, rows, s = scores.shape
    sink = sinks.view(1, j, -1, 1).expand(g, j, -1, rows // (sinks.numel() // j)).reshape(g, j, rows, 1)
    weights = torch.cat([scores, sink.to(scores.dtype)], dim=-1).softmax(-1, dtype=torch.float32)[..., :s]
    return torch.matmul(weights.to(v.dtype), v)


@dataclass(frozen=True, slots=True)
class Variation:
    """What sets one layer's attention apart."""

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


def _over_pages(query: Tensor, keys: Tensor, values: Tensor, ctx: AttentionContext, how: Variation) -> Tensor:
    """query [1, H, N, D] over pages [slots, J, D] and [slots, J, E] -> [1, N, H, E]; E = 0: the keys are the values.

    Query heads that share a key/value head become extra rows of one product, so nothing is repeated.
    """
    h, n, d = query.shape[1:]
    j = keys.shape[1]
    q_nhd = query[0].transpose(0, 1)
    out = None if ctx.groups[0].rows is None else query.new_empty(n, h, values.shape[-1] or d)
    for group in ctx.groups:
        g, r = group.source.rows.shape
        q = q_nhd if group.rows is None else q_nhd[group.rows]
        q = q.reshape(g, r, j, h // j, d).permute(0, 2, 3, 1, 4).reshape(g, j, h // j * r, d)
        view = group.view(how.window, query.device)
        k = view.read(keys)
        v = view.read(values) if values.shape[-1] else k
        mask = view.mask(h // j, q)
        if how.softcap is None and how.sinks is None:
            o = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=how.scaling)
        else:
            o = _softcapped(q, k, v, mask, how.scaling, how.softcap, how.sinks)
        o = o.view(g, j, h // j, r, -1).permute(0, 3, 1, 2, 4).reshape(g * r, h, -1)
        if out is None:
            return o.unsqueeze(0)
        if group.pick is None:
            out[group.rows] = o
        else:
            assert group.rows is not None
            out[group.rows[group.pick]] = o[group.pick]
    assert out is not None
    return out.unsqueeze(0)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dw_ctx: AttentionContext | ShapeProbe,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query [1, H, N, D], key [1, J, N, D] and value [1, J, N, E] -> output [1, N, H, E]."""
    if isinstance(dw_ctx, ShapeProbe):
        return dw_ctx.take(module, query, key, value), None
    keys, values = dw_ctx.pages[int(module.layer_idx)]  # type: ignore[arg-type]
    how = Variation(scaling if scaling is not None else query.shape[-1] ** -0.5, sliding_window, softcap, s_aux)
    if latent := Latent.of(module):  # the LatentCache has written this call's
        return latent.values(_over_pages(latent.queries(query), keys, values, dw_ctx, how)), None
    keys[dw_ctx.write_slots] = key[0].transpose(0, 1)
    values[dw_ctx.write_slots] = value[0].transpose(0, 1)
    return _over_pages(query, keys, values, dw_ctx, how), None


def register() -> None:
    """Make `attn_implementation="draftwing"` known to transformers; safe to call again."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
