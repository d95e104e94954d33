"""Runs the target: one forward over a ragged batch, with keys and values in our pages.

Shapes: N rows in the ragged batch, M rows whose logits are wanted, V vocabulary, J key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from draftwing.core import IntArray
from draftwing.engine import attention
from draftwing.engine.batch import RaggedBatch, SequenceRows, build
from draftwing.engine.latent import LatentCache


class Runner(Protocol):
    """What the engine needs of a target; the mock target of `draftwing.testing` is another one."""

    vocab_size: int

    def forward(self, sequences: Seq[SequenceRows]) -> Tensor:
        """Logits [M, V] of the wanted rows, in batch order; every row's keys and values are in the cache after it."""

    def move(self, source: IntArray, target: IntArray) -> None:
        """Copy cache rows source[i] to target[i], all read before any is written."""


def kv_bytes_per_slot(layers: Seq[attention.KVShape], dtype: torch.dtype) -> int:
    return sum(shape.heads * (shape.key_size + shape.value_size) for shape in layers) * dtype.itemsize


@torch.inference_mode()
def probe_layers(model: nn.Module, device: torch.device) -> list[attention.KVShape]:
    """Key and value shapes of every attention layer, seen in a forward of one token that attends to nothing."""
    probe = attention.ShapeProbe()
    _call(
        model,
        torch.zeros(1, 1, dtype=torch.long, device=device),
        torch.zeros(1, dtype=torch.long, device=device),
        probe,
    )
    return [probe.shapes[layer] for layer in range(len(probe.shapes))]


def _call(
    model: nn.Module, tokens: Tensor, wanted: Tensor, ctx: Any, positions: Tensor | None = None, **more: Any
) -> Tensor:
    position_ids = torch.zeros_like(tokens) if positions is None else positions
    out = model(tokens, position_ids=position_ids, use_cache=False, logits_to_keep=wanted, dw_ctx=ctx, **more)
    logits: Tensor = out.logits[0]
    return logits


class ModelRunner:
    """A transformers model over `slots` cache rows."""

    def __init__(
        self,
        model: nn.Module,
        *,
        slots: int,
        layers: Seq[attention.KVShape],
        device: torch.device,
        dtype: torch.dtype,
        vocab_size: int,
    ) -> None:
        self.model = model
        self.device = device
        self.vocab_size = vocab_size
        # Other models must get none: they would hand it what our attention function writes itself.
        self.keywords = {"cache": LatentCache()} if any(shape.value_size == 0 for shape in layers) else {}
        self.pages = [
            (
                torch.empty(slots, shape.heads, shape.key_size, device=device, dtype=dtype),
                torch.empty(slots, shape.heads, shape.value_size, device=device, dtype=dtype),
            )
            for shape in layers
        ]

    @torch.inference_mode()
    def forward(self, sequences: Seq[SequenceRows]) -> Tensor:
        batch: RaggedBatch = build(sequences)
        ctx = attention.prepare(batch, self.pages, self.device)
        tokens, positions, wanted = (
            torch.from_numpy(x).to(self.device, non_blocking=True)
            for x in (batch.tokens, batch.positions, batch.wanted)
        )
        return _call(self.model, tokens[None], wanted, ctx, positions[None], **self.keywords)

    @torch.inference_mode()
    def move(self, source: IntArray, target: IntArray) -> None:
        src, dst = (torch.from_numpy(x).to(self.device) for x in (source, target))
        for keys, values in self.pages:
            keys[dst] = keys[src]
            values[dst] = values[src]
