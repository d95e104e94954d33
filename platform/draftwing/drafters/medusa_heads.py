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
from torch.nn.functional import silu

from draftwing.checkpoints.layouts import MEDUSA
from draftwing.checkpoints.resolve import medusa_layout
from draftwing.drafters.base import CheckpointReader, TargetInfo
from draftwing.drafters.weights import Weights
from draftwing.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MedusaHead:
    """blocks: [H] to [H] each. output: [H] to [V_d], its own or its target's."""

    blocks: tuple[nn.Linear, ...]
    output: Any

    def __call__(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = hidden + silu(block(hidden))
        logits: Tensor = self.output(hidden)
        return logits


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    """layout: which published form it was read from. token_map [V_d]: the target's id of each entry, None: the same."""

    layout: str
    heads: tuple[MedusaHead, ...]
    token_map: Tensor | None = None

    def logits(self, hidden: Tensor, heads: Tensor) -> Tensor:
        """hidden [N, H] final-normed, heads [N]: which head each row goes through -> [N, V_d]."""
        found: Tensor | None = None
        for index in sorted(set(heads.tolist())):
            rows = (heads == index).nonzero()[:, 0]
            own = self.heads[index](hidden[rows])
            if found is None:
                found = own.new_empty(len(hidden), own.shape[1])
            found[rows] = own
        if found is None:
            raise ValueError("no rows")
        return found


def read_heads(checkpoint: CheckpointReader, target: TargetInfo) -> MedusaHeads:
    """The heads of a checkpoint, counted by its tensors: published configs understate them. ConfigError."""
    names = set(checkpoint.names())
    layout = medusa_layout(names)
    if layout is None:
        raise ConfigError("the checkpoint has no Medusa heads; expected tensors like 0.0.linear.weight")
    block, projection = MEDUSA[layout]
    blocks = {m.groups()[:2]: m.string.rpartition(".")[0] for name in names if (m := re.fullmatch(block, name))}
    projections = {m[1]: m.string.rpartition(".")[0] for name in names if (m := re.fullmatch(projection, name))}
    if layout == "merged":
        checkpoint.skip(name for name in names if not name.startswith("medusa_head."))
    if layout == "converted" and (scale := checkpoint.config.get("logit_scale") or 1) != 1:
        raise ConfigError(f"the drafter's config.json has logit_scale {scale!r}, which is not supported; expected 1")
    count, size = len({head for head, _ in blocks}), target.hidden_size
    if projections and projections.keys() != {head for head, _ in blocks}:
        raise ConfigError(f"only some of the {count} Medusa heads have a projection to the vocabulary")
    if not projections and target.model is None:
        raise ConfigError("these Medusa heads use the target's output projection; they can't draft without the target")
    weights = Weights(checkpoint, torch.device(target.device), getattr(torch, target.dtype), {})
    model: Any = target.model
    heads: list[MedusaHead] = []
    for index in map(str, range(count)):
        own = sorted(int(depth) for head, depth in blocks if head == index)
        if own != list(range(len(own))) or not own:
            raise ConfigError(f"Medusa head {index} of {count} has blocks {own}; expected 0, 1, ...")
        linears = tuple(weights.linear(blocks[index, str(depth)], size, size, None) for depth in own)
        outputs = heads[0].output.out_features if heads else None
        output = weights.linear(projections[index], size, outputs) if projections else model.get_output_embeddings()
        heads.append(MedusaHead(linears, output))
    token_map = weights.target_ids(heads[0].output.out_features, target.vocab_size)
    return MedusaHeads(layout, tuple(heads), token_map)
