"""One attention function for every model of transformers: writes a step's keys and values to our pages and attends.

Registered with `AttentionInterface` and absent from `AttentionMaskInterface`, so transformers builds no mask and hands
every variation of a layer (scaling, sliding window, soft cap, sinks) to us as a keyword.

Shapes: N rows in the ragged batch, G sequences of a group, R its padded rows, S its padded slots, H query heads,
J key/value heads, Q = H / J, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from draftwing.engine.batch import Group, RaggedBatch

NAME = "draftwing"


@dataclass(slots=True)
class DeviceGroup:
    """A Group on the model's device; slots and rows are slices where they are contiguous, which saves a copy."""

    source: Group
    rows: Tensor | None  # [G * R], None: the group is the whole batch in order, unpadded
    pick: Tensor | None  # [n] padded place of each real row, None when nothing is padded
    slots: Tensor | slice
    masks: dict[tuple[int | None, int], Tensor | None] = field(default_factory=dict)


@dataclass(slots=True)
class AttentionContext:
    """What attention needs in one forward: where to write, what to read, what each row may see.

    pages: per layer (keys [slots, J, D], values [slots, J, D]).
    """

    pages: list[tuple[Tensor, Tensor]]
    write_slots: Tensor
    groups: list[DeviceGroup]


@dataclass(frozen=True, slots=True)
class KVShape:
    """Keys and values of one layer: heads J and their sizes."""

    heads: int
    key_size: int
    value_size: int


@dataclass(slots=True)
class ShapeProbe:
    """Stands in for a context to learn each layer's shapes: `attend` records them and returns zeros."""

    shapes: dict[int, KVShape] = field(default_factory=dict)


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
                slots=_contiguous(group.slots) or on_device(group.slots),
            )
        )
    return AttentionContext(pages, on_device(batch.write_slots), groups)


def _mask(group: DeviceGroup, window: int | None, heads: int, like: Tensor) -> Tensor | None:
    """Additive mask [G, 1, Q * R, S] of a layer kind, made once a step; None where every row sees every slot."""
    key = (window, heads)
    if key not in group.masks:
        source = group.source
        visible = source.visible
        if window is not None:
            visible = visible & (source.key_pos[:, None, :] > source.query_pos[:, :, None] - window)
        if visible.all():
            group.masks[key] = None
        else:
            seen = torch.from_numpy(visible).to(like.device)
            mask = torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(~seen, float("-inf"))
            group.masks[key] = mask.repeat(1, heads, 1).unsqueeze(1)
    return group.masks[key]


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
    """query [1, H, N, D], key and value [1, J, N, D] -> output [1, N, H, D].

    Query heads that share a key/value head become extra rows of one product, so nothing is repeated.
    """
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    if isinstance(dw_ctx, ShapeProbe):
        dw_ctx.shapes[layer] = KVShape(key.shape[1], key.shape[-1], value.shape[-1])
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1]), None
    keys, values = dw_ctx.pages[layer]
    keys[dw_ctx.write_slots] = key[0].transpose(0, 1)
    values[dw_ctx.write_slots] = value[0].transpose(0, 1)
    h, n, d = query.shape[1:]
    j = key.shape[1]
    scale = scaling if scaling is not None else d**-0.5
    q_nhd = query[0].transpose(0, 1)
    out = None if dw_ctx.groups[0].rows is None else query.new_empty(n, h, value.shape[-1])
    for group in dw_ctx.groups:
        g, r = group.source.rows.shape
        q = q_nhd if group.rows is None else q_nhd[group.rows]
        q = q.reshape(g, r, j, h // j, d).permute(0, 2, 3, 1, 4).reshape(g, j, h // j * r, d)
        k, v = keys[group.slots], values[group.slots]
        k, v = (x.view(g, -1, j, x.shape[-1]).transpose(1, 2) for x in (k, v))
        mask = _mask(group, sliding_window, h // j, q)
        if softcap is None and s_aux is None:
            o = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        else:
            o = _softcapped(q, k, v, mask, scale, softcap, s_aux)
        o = o.view(g, j, h // j, r, -1).permute(0, 3, 1, 2, 4).reshape(g * r, h, -1)
        if out is None:
            return o.unsqueeze(0), None
        if group.pick is None:
            out[group.rows] = o
        else:
            assert group.rows is not None
            out[group.rows[group.pick]] = o[group.pick]
    assert out is not None
    return out.unsqueeze(0), None


def register() -> None:
    """Make `attn_implementation="draftwing"` known to transformers; safe to call again."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
