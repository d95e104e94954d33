"""Root-mean-square norms on a CPU: models write them as eight small operations, which in a step of few rows cost as
much as all attention. One call of our kernel replaces them where a trial at load shows that it computes the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftwing.kernels.cpu_kernel import CpuKernel

TRIAL_SCALES = (1e-3, 1.0, 1e3)  # of the rows in the trial: the least shows epsilon
TOLERANCE = 1e-5  # relative


class KernelNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * scale, over the last dimension. weight: the parameter behind scale."""

    def __init__(self, weight: nn.Parameter, scale: Tensor, epsilon: float, kernel: CpuKernel) -> None:
        super().__init__()
        self.weight = weight
        self._scale = scale
        self._epsilon = epsilon
        self._kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        return self._kernel.rms_norm(x.contiguous(), self._scale, self._epsilon)


def _same(module: nn.Module, ours: KernelNorm) -> bool:
    size = ours.weight.numel()
    x = torch.randn(len(TRIAL_SCALES), size, generator=torch.Generator().manual_seed(0))
    x *= torch.tensor(TRIAL_SCALES)[:, None]
    return torch.allclose(ours(x), module(x), rtol=TOLERANCE, atol=0)


def _replacement(module: nn.Module, kernel: CpuKernel) -> KernelNorm | None:
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = getattr(module, "weight", None)
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(epsilon, float):
        return None
    if not isinstance(weight, nn.Parameter) or weight.dtype is not torch.float32 or weight.device.type != "cpu":
        return None
    value = weight.detach().contiguous()
    for scale in (value, 1.0 + value):  # Gemma stores the scale less one
        ours = KernelNorm(weight, scale, epsilon, kernel)
        if _same(module, ours):
            return ours
    return None


@torch.inference_mode()
def replace_norms(model: nn.Module, kernel: CpuKernel) -> None:
    """Put our kernel in the place of every norm that it computes equally."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            ours = _replacement(child, kernel)
            if ours is not None:
                setattr(parent, name, ours)
