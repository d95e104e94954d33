"""Medusa's heads: each predicts, from one hidden state of the target, the token one place further ahead.

Cai et al.: Medusa, Simple LLM Inference Acceleration Framework with Multiple Decoding Heads, 2024. A head is some
residual blocks, x + SiLU(W x + b), and a projection to the vocabulary; in the legacy layout the target's own.

N rows, H hidden size, V_d entries of the heads' projections.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from draftwing.checkpoints.layouts import MEDUSA, TOKEN_MAPS
from draftwing.checkpoints.resolve import medusa_layout
from draftwing.drafters.base import CheckpointReader, TargetInfo
from draftwing.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MedusaHead:
    """blocks: (weight [H, H], bias [H] or None) each. projection [V_d, H]; None: the target's own."""

    blocks: tuple[tuple[Tensor, Tensor | None], ...]
    projection: Tensor | None


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    """layout: which published form it was read from. token_map [V_d]: the target's id of each entry, None: the same."""

    layout: str
    heads: tuple[MedusaHead, ...]
    output: nn.Module | None
    token_map: Tensor | None = None

    def logits(self, hidden: Tensor, heads: Tensor) -> Tensor:
        """hidden [N, H] final-normed, heads [N]: which head each row goes through -> [N, V_d]."""
        found: Tensor | None = None
        for index in sorted(set(heads.tolist())):
            rows = (heads == index).nonzero()[:, 0]
            own = self._through(self.heads[index], hidden[rows])
            if found is None:
                found = own.new_empty(len(hidden), own.shape[1])
            found[rows] = own
        if found is None:
            raise ValueError("no rows")
        return found

    def _through(self, head: MedusaHead, hidden: Tensor) -> Tensor:
        for weight, bias in head.blocks:
            hidden = hidden + silu(linear(hidden, weight, bias))
        if head.projection is not None:
            return linear(hidden, head.projection)
        assert self.output is not None
        logits: Tensor = self.output(hidden)
        return logits


def read_heads(checkpoint: CheckpointReader, target: TargetInfo) -> MedusaHeads:
    """The heads of a checkpoint, counted by its tensors: published configs understate them. ConfigError."""
    names = set(checkpoint.names())
    layout = medusa_layout(names)
    if layout is None:
        raise ConfigError("the checkpoint has no Medusa heads; expected tensors like 0.0.linear.weight")
    block, projection = MEDUSA[layout]
    blocks = {m.groups(): m.string for name in names if (m := re.fullmatch(block, name))}
    projections = {m[1]: m.string for name in names if (m := re.fullmatch(projection, name))}
    if layout == "merged":
        checkpoint.skip(name for name in names if not name.startswith("medusa_head."))
    place = {"device": torch.device(target.device), "dtype": getattr(torch, target.dtype)}

    def read(name: str | None, shape: tuple[int | None, ...]) -> Tensor | None:
        if name is None:
            return None
        found = checkpoint.shape(name)
        if len(found) != len(shape) or any(want not in (None, got) for want, got in zip(shape, found, strict=True)):
            wanted = [target.hidden_size if want is not None else "any" for want in shape]
            raise ConfigError(f"{name} has shape {list(found)}; these heads fit a target with {wanted}")
        return checkpoint.read(name).to(**place)

    count, size = len({head for head, _, _ in blocks}), target.hidden_size
    heads = []
    for index in map(str, range(count)):
        own = sorted({int(depth) for head, depth, _ in blocks if head == index})
        if own != list(range(len(own))) or not own:
            raise ConfigError(f"Medusa head {index} of {count} has blocks {own}; expected 0, 1, ...")
        pairs = [
            (read(blocks[index, str(b), "weight"], (size, size)), read(blocks.get((index, str(b), "bias")), (size,)))
            for b in own
        ]
        heads.append(MedusaHead(tuple(pairs), read(projections.get(index), (None, size))))  # type: ignore[arg-type]
    if len({head.projection is None for head in heads}) > 1:
        raise ConfigError(f"only some of the {count} Medusa heads have a projection to the vocabulary")
    shared = heads[0].projection is None
    if shared and target.model is None:
        raise ConfigError("these Medusa heads use the target's output projection; they can't draft without the target")
    model: Any = target.model
    token_map = next((checkpoint.read(name) for name in TOKEN_MAPS if name in names), None)
    return MedusaHeads(layout, tuple(heads), model.get_output_embeddings() if shared else None, token_map)
