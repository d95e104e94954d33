"""Weights as 8-bit integers with one scale per output: a quarter of the memory to read, for an error that shows.

Activations and sums stay float32. The quantized model is a model of its own: rule R1 holds for it, and its text differs
from the original's (`benchmarks/quantized_text.py` says how much).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftwing.kernels.cpu_kernel import CpuKernel

LARGEST = 127
CHUNK = 4096  # outputs at a time, so that quantizing takes little memory of its own


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [out, in] -> int8 [out, in] and scales [out]: each output's largest weight becomes 127."""
    integers = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(len(weight))
    for start in range(0, len(weight), CHUNK):
        part = weight[start : start + CHUNK]
        largest = part.abs().amax(1)
        scale = torch.where(largest > 0, largest / LARGEST, 1.0)
        integers[start : start + CHUNK] = (part / scale[:, None]).round_()
        scales[start : start + CHUNK] = scale
    return integers, scales


class Int8Linear(nn.Module):
    """An nn.Linear on quantized weights. A row's result is the same, bit for bit, in any company."""

    weight: Tensor
    scales: Tensor

    def __init__(self, source: nn.Linear, kernel: CpuKernel) -> None:
        super().__init__()
        self.in_features, self.out_features = source.in_features, source.out_features
        self.bias = source.bias
        integers, scales = quantize(source.weight.detach())
        self.register_buffer("weight", integers)
        self.register_buffer("scales", scales)
        self._kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.in_features or x.dtype is not torch.float32:
            raise RuntimeError(f"input is {list(x.shape)} {x.dtype}; expected [..., {self.in_features}] float32")
        return self._kernel.product_int8(x.contiguous(), self.weight, self.scales, self.bias)
