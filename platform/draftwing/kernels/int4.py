"""Weights as 4-bit integers, 32 to a scale and an offset: an eighth of the memory to read, for a larger error.

torch's own product for such weights on a CPU, which takes bfloat16 inputs. The quantized model is a model of its own:
rule R1 holds for it, and its text differs from the original's (`benchmarks/quantized_text.py` says how much).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

GROUP = 32  # neighbouring weights of an output that share a scale and an offset
OUTPUTS = 16  # torch's packing takes whole multiples
MIDDLE, LARGEST = 8, 15
CHUNK = 4096  # outputs at a time, so that quantizing takes little memory of its own


def fits(linear: nn.Linear) -> bool:
    return linear.in_features % GROUP == 0 and linear.out_features % OUTPUTS == 0


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [out, in] -> integers 0..15 [out, in] (int32), and scales with offsets [in / GROUP, out, 2] in bfloat16.

    A weight is (integer - 8) * scale + offset; a group's smallest becomes 0, its largest 15.
    """
    groups = weight.float().view(len(weight), -1, GROUP)
    least = groups.amin(-1)
    scale = ((groups.amax(-1) - least) / LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
    pairs = torch.stack([scale, least + MIDDLE * scale], -1).bfloat16()
    scale, offset = pairs.float().unbind(-1)  # as the product will read them
    scale = scale.clamp_min(torch.finfo(torch.float32).tiny)
    integers = ((groups - offset[..., None]) / scale[..., None] + MIDDLE).round_().clamp_(0, LARGEST)
    return integers.to(torch.int32).view(weight.shape), pairs.transpose(0, 1).contiguous()


class Int4Linear(nn.Module):
    """An nn.Linear on quantized weights, float32 in and out; a row's bits do not depend on its company."""

    weight: Tensor
    scales: Tensor

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = source.in_features, source.out_features
        self.bias = source.bias
        aten: Any = torch.ops.aten
        parts = [quantize(part) for part in torch.split(source.weight.detach(), CHUNK)]
        packed = [aten._convert_weight_to_int4pack_for_cpu(integers, 1) for integers, _ in parts]
        self.register_buffer("weight", torch.cat(packed))
        self.register_buffer("scales", torch.cat([scales for _, scales in parts], dim=1))
        self._product: Any = aten._weight_int4pack_mm_for_cpu

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.in_features or x.dtype is not torch.float32:
            raise RuntimeError(f"input is {list(x.shape)} {x.dtype}; expected [..., {self.in_features}] float32")
        rows = x.reshape(-1, self.in_features).bfloat16()
        y: Tensor = self._product(rows, self.weight, GROUP, self.scales).float()
        if self.bias is not None:
            y += self.bias
        return y.view(*x.shape[:-1], self.out_features)
