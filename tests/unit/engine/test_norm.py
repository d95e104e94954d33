"""Norms replaced by the kernel: only where they compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from draftwing.kernels.cpu_kernel import CpuKernel
from draftwing.kernels.norm import KernelNorm, replace_norms
from tests.unit.engine.test_linear import kernel

__all__ = ["kernel"]


class CentredRMSNorm(LlamaRMSNorm):
    """Named like the others, and something else."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states - hidden_states.mean(-1, keepdim=True))


class LargeEpsilonRMSNorm(LlamaRMSNorm):
    """Another epsilon than its attribute says."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        size = hidden_states.shape[-1]
        return nn.functional.rms_norm(hidden_states, (size,), self.weight, 2e-6)


def with_weights(module: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter)
    return module.requires_grad_(False)


@pytest.mark.parametrize("size", [1, 5, 16, 100, 640])
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma3RMSNorm])
def test_equal_norms_are_replaced(kernel: CpuKernel, kind: type[nn.Module], size: int) -> None:
    source = with_weights(kind(size))
    model = nn.Sequential(source)
    replace_norms(model, kernel)
    ours = model[0]
    assert isinstance(ours, KernelNorm)
    assert ours.weight is source.weight
    for x in (torch.randn(7, size) * 100, torch.randn(2, size, 3).transpose(1, 2) * 1e-4, torch.zeros(1, 2, size)):
        torch.testing.assert_close(ours(x), source(x), rtol=1e-5, atol=1e-7)


def test_a_row_is_the_same_in_any_company(kernel: CpuKernel) -> None:
    model = nn.Sequential(with_weights(LlamaRMSNorm(100)))
    replace_norms(model, kernel)
    x = torch.randn(40, 100)
    assert all(torch.equal(model(x[:rows]), model(x)[:rows]) for rows in range(1, 41))


@pytest.mark.parametrize(
    "source",
    [
        CentredRMSNorm(16),
        LargeEpsilonRMSNorm(16),
        LlamaRMSNorm(16).double(),
        LlamaRMSNorm(16).half(),
        nn.LayerNorm(16),
        nn.RMSNorm(16),  # its epsilon is None: the dtype's own
    ],
)
def test_others_stay(kernel: CpuKernel, source: nn.Module) -> None:
    model = nn.Sequential(with_weights(source))
    replace_norms(model, kernel)
    assert model[0] is source
