"""Four-bit weights: the numbers they stand for, and that a row's result depends on nothing beside it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from draftwing.kernels.int4 import CHUNK, GROUP, LARGEST, MIDDLE, Int4Linear, fits, quantize


def restored(integers: Tensor, pairs: Tensor) -> Tensor:
    scale, offset = pairs.float().transpose(0, 1).unbind(-1)
    groups = integers.view(len(integers), -1, GROUP)
    return ((groups - MIDDLE) * scale[..., None] + offset[..., None]).view(integers.shape)


def test_a_weight_is_off_by_half_a_step() -> None:
    weight = torch.randn(48, 128, generator=torch.Generator().manual_seed(1)) + torch.linspace(-3, 3, 48)[:, None]
    integers, pairs = quantize(weight)
    assert int(integers.min()) >= 0
    assert int(integers.max()) <= LARGEST
    step = pairs.float()[..., 0].T.repeat_interleave(GROUP, 1)
    rounding = 2.0**-8 * (LARGEST * step + weight.abs())  # of scale and offset to bfloat16
    assert ((restored(integers, pairs) - weight).abs() <= step / 2 + rounding).all()


@pytest.mark.parametrize("weight", [torch.zeros(16, 32), torch.full((16, 32), -2.5)])
def test_equal_weights_are_kept(weight: Tensor) -> None:
    assert torch.equal(restored(*quantize(weight)), weight)


@pytest.mark.parametrize("bias", [False, True])
def test_the_product_is_that_of_the_restored_weight(bias: bool) -> None:
    torch.manual_seed(2)
    source = nn.Linear(96, 2 * CHUNK + 16, bias=bias).requires_grad_(False)
    x = torch.randn(2, 5, 96)
    wanted = nn.functional.linear(x.bfloat16().float(), restored(*quantize(source.weight)), source.bias)
    torch.testing.assert_close(Int4Linear(source)(x), wanted, atol=0.02, rtol=0.01)


def test_a_row_is_the_same_in_any_company() -> None:
    torch.manual_seed(3)
    module = Int4Linear(nn.Linear(64, 48).requires_grad_(False))
    x = torch.randn(1, 40, 64)
    together = module(x)
    for rows in (1, 4, 9, 33):
        assert torch.equal(module(x[:, :rows]), together[:, :rows])


def test_other_inputs_are_refused() -> None:
    module = Int4Linear(nn.Linear(64, 48).requires_grad_(False))
    assert module(torch.randn(2, 0, 64)).shape == (2, 0, 48)
    for x in (torch.randn(2, 32), torch.randn(2, 64, dtype=torch.float64)):
        with pytest.raises(RuntimeError, match="expected"):
            module(x)
    assert not fits(nn.Linear(48, 32))
    assert not fits(nn.Linear(64, 40))
