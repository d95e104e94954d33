"""Skinny products on a CPU: a verify multiplies few rows by large weights; reading the weights should be all it costs.

oneDNN's prepacked layout keeps a product of up to about ten float32 rows near the cost of one, while torch's `linear`
repacks the weight in every call from four rows on (`benchmarks/gemm_rows.py` prints the table). A module takes the same
path at every row count, so that the choice can't differ between runs (rule R1).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

ROWS_HINT = 8  # the row count that the packed layout is made for


class PackedLinear(nn.Module):
    """A Linear whose weight [out, in] lies packed; weight and result as of nn.Linear, to rounding."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        onednn: Any = torch.ops.mkldnn
        self._packed: Tensor = onednn._reorder_linear_weight(linear.weight.detach(), ROWS_HINT)
        self._product: Any = onednn._linear_pointwise
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self._product(x, self._packed, self.bias, "none", [], "")
        return result


def packable(module: nn.Module) -> bool:
    return type(module) is nn.Linear and module.weight.dtype is torch.float32 and module.weight.device.type == "cpu"


def pack_linears(model: nn.Module) -> int:
    """Replace every float32 CPU Linear of the model by its packed form; the number replaced, 0 without oneDNN.

    A weight used elsewhere too (a head tied to the embedding) stays in memory beside its packed copy.
    """
    onednn: Any = torch.backends.mkldnn
    if not onednn.is_available():
        return 0
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if packable(child):
                setattr(parent, name, PackedLinear(child))  # type: ignore[arg-type]
                replaced += 1
    return replaced
