"""Weights as 8-bit integers: what is lost, what isn't, and refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from draftwing.errors import ConfigError, SetupError
from draftwing.kernels import speedup
from draftwing.kernels.cpu_kernel import CpuKernel
from draftwing.kernels.int8 import CHUNK, Int8Linear, quantize
from tests.random_targets import random_model
from tests.unit.engine.test_linear import SHAPES, kernel, linear_of

__all__ = ["kernel"]


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (CHUNK + 3, 5)])
def test_quantizing_errs_by_half_a_step(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape)
    weight[0] = 0
    integers, scales = quantize(weight)
    assert integers.dtype is torch.int8
    assert (integers[1:].abs().amax(1) == 127).all()
    error = (integers * scales[:, None] - weight).abs()
    assert (error <= 0.501 * scales[:, None]).all()
    assert (integers[0] == 0).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False])
def test_product_of_the_quantized_weights(kernel: CpuKernel, shape: tuple[int, int], bias: bool) -> None:
    source = linear_of(shape, bias=bias)
    module = Int8Linear(source, kernel)
    weight = module.weight.double() * module.scales.double()[:, None]
    for rows in range(1, 34):
        x = torch.randn(rows, shape[1])
        expected = x.double() @ weight.T + (source.bias.double() if bias else 0)
        torch.testing.assert_close(module(x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_is_the_same_in_any_company(kernel: CpuKernel, shape: tuple[int, int]) -> None:
    module = Int8Linear(linear_of(shape), kernel)
    x = torch.randn(70, shape[1])
    together = module(x)
    for rows in (*range(1, 34), 64, 69):
        assert torch.equal(module(x[:rows]), together[:rows])


def test_other_inputs_are_refused(kernel: CpuKernel) -> None:
    module = Int8Linear(linear_of((12, 20)), kernel)
    assert module(torch.randn(2, 0, 20)).shape == (2, 0, 12)
    for x in (torch.randn(2, 10), torch.randn(2, 40), torch.randn(2, 20, dtype=torch.float64)):
        with pytest.raises(RuntimeError, match="expected"):
            module(x)


def test_every_plain_linear_is_quantized(kernel: CpuKernel) -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.Sequential(nn.Linear(6, 4)), nn.Embedding(3, 4)).requires_grad_(False)
    told: list[str] = []
    speedup.speed_up(model, compile_kernel=True, quantization="int8", tell=told.append)
    assert [type(module).__name__ for module in model.modules()][1:] == [
        "Int8Linear",
        "Sequential",
        "Int8Linear",
        "Embedding",
    ]
    assert len(told) == 1
    assert "quantizing to int8" in told[0]


def test_int4_leaves_the_head_and_odd_shapes_to_int8(kernel: CpuKernel) -> None:
    model = random_model("llama")  # 48 inputs are no whole groups of 32
    speedup.speed_up(model, compile_kernel=True, quantization="int4")
    found = {name.rpartition(".")[2]: type(module).__name__ for name, module in model.named_modules()}
    assert found["down_proj"] == "Int4Linear"
    assert found["o_proj"] == found["up_proj"] == found["lm_head"] == "Int8Linear"


def test_refusals_name_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(8, 6))
    with pytest.raises(ConfigError, match=r"model\.quantization.*model\.compile: true"):
        speedup.speed_up(model, compile_kernel=False, quantization="int8")
    monkeypatch.setattr(speedup, "load_kernel", lambda _: None)
    with pytest.raises(SetupError, match=r"model\.quantization"):
        speedup.speed_up(model, compile_kernel=True, quantization="int8")
