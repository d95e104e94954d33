"""Skinny products on a CPU: a verify multiplies few rows by large weights; reading the weights should be all it costs.

torch's `linear` repacks the weight in every call from four rows on. Our kernel reads it once, in place, for up to 32
rows at nearly the cost of one. Where it can't be built, oneDNN's prepacked copies help from four rows on, at twice the
memory. `benchmarks/gemm_rows.py` prints the table. A method is chosen by the row count alone and never measured at run
time, so that it can't differ between runs (rule R1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from draftwing.kernels.cpu_kernel import CpuKernel

KERNEL_ROWS = 32  # most rows; with more, torch's blocked product is as fast or faster
PACKED_FROM = 4  # rows
ROWS_HINT = 8  # the row count that the packed layout is made for


class KernelLinear(nn.Module):
    """An nn.Linear whose skinny products run in our kernel: the same product, to rounding, on the same weight.

    Up to KERNEL_ROWS rows, a row's result does not depend, in any bit, on the rows beside it.
    """

    def __init__(self, source: nn.Linear, kernel: CpuKernel) -> None:
        super().__init__()
        self.in_features, self.out_features = source.in_features, source.out_features
        self.weight, self.bias = source.weight, source.bias
        self._kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        fits = 0 < x.numel() <= KERNEL_ROWS * self.in_features and x.shape[-1] == self.in_features
        if fits and x.dtype is torch.float32 and x.is_cpu and not x.requires_grad:
            return self._kernel.product(x.contiguous(), self.weight, self.bias)
        return linear(x, self.weight, self.bias)


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


def replaceable(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Every float32 Linear on a CPU, as (parent, name, module). A subclass may compute something else, so it stays."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                weight = child.weight
                if weight.dtype is torch.float32 and weight.device.type == "cpu" and weight.is_contiguous():
                    yield parent, name, child


def replace_linears(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> None:
    """Put make(module) in the place of every replaceable Linear."""
    for parent, name, child in replaceable(model):
        setattr(parent, name, make(child))


def packed_bytes(model: nn.Module) -> int:
    """Memory that packed copies would add; 0 where there is no oneDNN."""
    onednn: Any = torch.backends.mkldnn
    if not onednn.is_available():
        return 0
    return sum(child.weight.nbytes for _, _, child in replaceable(model))
