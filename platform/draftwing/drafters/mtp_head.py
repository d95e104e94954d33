"""Multi-token prediction modules as a head: module i of a draft's depth i, the last one again beyond.

A committed row goes through all modules. Module i takes what module i - 1 gave out for the row before (the first one
the target's hidden state there), so it has rows from the token i + 1 on. A drafted row at depth d goes through the
modules from d on: those before have nothing to say about it.

Shapes: N rows, M modules, H hidden size, W = M * H. Parts of a row are the inputs of its modules, those of a drafted
row beginning with module d.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from draftwing.drafters.base import TargetInfo
from draftwing.drafters.feature_drafter import HeadRows
from draftwing.drafters.mtp_modules import MtpModule
from draftwing.engine.attention import AttentionContext, ShapeProbe
from draftwing.engine.latent import LatentCache


class MtpHead:
    """A `Head` (see `feature_drafter`). raw: hidden states are taken and recycled before norms; for one module only."""

    def __init__(self, modules: Seq[MtpModule], target: TargetInfo, *, raw: bool) -> None:
        model: Any = target.model
        self.modules, self._raw = modules, raw
        self._rope = model.get_decoder().rotary_emb
        self._keywords: dict[str, Any] = {}
        self.hidden_layers: tuple[int, ...] = (target.layers + raw,)
        self.hidden_size = target.hidden_size
        self.width = target.hidden_size * len(modules)
        self.dtype, self.device = getattr(torch, target.dtype), torch.device(target.device)
        self.target_ids: Tensor | None = None
        probe: Any = ShapeProbe()
        nowhere = torch.zeros(1, dtype=torch.long, device=self.device)
        with torch.inference_mode():
            self.forward(
                HeadRows(nowhere, nowhere, nowhere, nowhere - 1, False, probe),
                torch.zeros(1, self.width, device=self.device, dtype=self.dtype),
            )
        self.kv = [probe.shapes[i] for i in range(len(modules))]
        if any(shape.value_size == 0 for shape in self.kv):
            self._keywords["cache"] = LatentCache()

    def fuse(self, features: tuple[Tensor, ...]) -> Tensor:
        return features[0]

    def forward(self, rows: HeadRows, hidden: Tensor) -> Tensor:
        last, count = len(self.modules) - 1, len(hidden)
        taken = hidden.view(count, last + 1, self.hidden_size).clone()
        given = torch.zeros_like(taken)
        every = torch.arange(count, device=hidden.device)
        following = (rows.before >= 0).nonzero()[:, 0] if last and not rows.drafted else every[:0]
        where = rows.positions[None]
        call = {"position_embeddings": self._rope(hidden[None], where), "position_ids": where, **self._keywords}
        for index in range(min(int(rows.drafted), last), last + 1):
            part = (index - rows.depths).clamp(min=0)
            module, ctx = self.modules[index], _from_slot(rows.ctx, index)
            out = module(rows.tokens, taken[every, part], attention_mask=None, dw_ctx=ctx, **call)
            given[every, part] = out = out if self._raw else module.norm(out)
            if index < last:
                taken[following, index + 1] = out[rows.before[following]]
        return given.view(count, self.width)

    def logits(self, recycled: Tensor) -> Tensor:
        module = self.modules[0]
        newest = recycled[:, : self.hidden_size]
        return module.output(module.norm(newest) if self._raw else newest)


def _from_slot(ctx: AttentionContext | ShapeProbe, first: int) -> AttentionContext | ShapeProbe:
    """Attention that sees none of a sequence's first slots, for rows that lie behind them."""
    if not first or isinstance(ctx, ShapeProbe):
        return ctx
    groups = []
    for group in ctx.groups:
        own = group.source
        seen = own.visible & ((own.key_pos >= first)[:, None] | (own.query_pos < first)[:, :, None])
        groups.append(replace(group, source=replace(own, visible=seen), views={}))
    return replace(ctx, groups=groups)
