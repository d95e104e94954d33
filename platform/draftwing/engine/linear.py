"""Skinny products on a CPU: a verify multiplies few rows by large weights; reading the weights should be all it costs.

Up to three float32 rows torch's `linear` does that. From four rows on it repacks the weight in every call, and oneDNN's
prepacked layout keeps eight rows near the cost of one (`benchmarks/gemm_rows.py` prints the table). The choice is made
by the row count alone and never measured at run time, so that it can't differ between runs (rule R1).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

PACKED_FROM = 4  # rows
ROWS_HINT = 8  # the row count that the packed layout is made for


class PackedLinear(nn.Module):
    """An nn.Linear with a packed copy of its weight [out, in]; the same product, to rounding."""

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = source.in_features, source.out_features
        self.weight, self.bias = source.weight, source.bias
        onednn: Any = torch.ops.mkldnn
        self._packed: Tensor = onednn._reorder_linear_weight(source.weight.detach(), ROWS_HINT)
        self._product: Any = onednn._linear_pointwise

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() < PACKED_FROM * self.in_features:
            return linear(x, self.weight, self.bias)
        result: Tensor = self._product(x, self._packed, self.bias, "none", [], "")
        return result


def _packable(module: nn.Linear) -> bool:
    """A plain Linear: a subclass may compute something else."""
    return type(module) is nn.Linear and module.weight.dtype is torch.float32 and module.weight.device.type == "cpu"


def packed_bytes(model: nn.Module) -> int:
    """Memory that `pack_linears` would add."""
    onednn: Any = torch.backends.mkldnn
    if not onednn.is_available():
        return 0
    return sum(m.weight.nbytes for m in model.modules() if isinstance(m, nn.Linear) and _packable(m))


def pack_linears(model: nn.Module) -> None:
    """Give every float32 Linear on a CPU its packed copy."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and _packable(child):
                setattr(parent, name, PackedLinear(child))
