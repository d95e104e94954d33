"""Linear modules replaced for skinny products: the same product, fixed choices, refusals said once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from draftwing.checkpoints.cache import cache_root
from draftwing.kernels import speedup
from draftwing.kernels.cpu_kernel import CpuKernel, find_compiler, load_kernel
from draftwing.kernels.linear import KERNEL_ROWS, PACKED_FROM, KernelLinear, PackedLinear, packed_bytes, replaceable
from tests.conftest import require

# out, in: below, at and above the kernel's vectors, tiles and blocks, and none of their multiples
SHAPES = [(1, 1), (3, 5), (17, 16), (130, 100), (257, 64), (40, 1030), (64, 2049)]


@pytest.fixture(scope="module")
def kernel() -> CpuKernel:
    if find_compiler() is None:
        require("g++")
    loaded = load_kernel(print)
    assert loaded is not None
    return loaded


def linear_of(shape: tuple[int, int], *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(sum(shape))
    return nn.Linear(shape[1], shape[0], bias=bias).requires_grad_(False)


def exact(module: nn.Module, x: Tensor) -> Tensor:
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    product = x.double() @ weight.double().T
    return product if bias is None else product + bias.double()  # type: ignore[operator]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False])
def test_kernel_and_packed_compute_what_linear_does(kernel: CpuKernel, shape: tuple[int, int], bias: bool) -> None:
    source = linear_of(shape, bias=bias)
    packed = PackedLinear(source) if packed_bytes(nn.Sequential(source)) else source
    for rows in range(1, 34):
        x = torch.randn(rows, shape[1])
        for module in (KernelLinear(source, kernel), packed):
            torch.testing.assert_close(module(x).double(), exact(source, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_is_the_same_in_any_company_and_with_any_threads(kernel: CpuKernel, shape: tuple[int, int]) -> None:
    module = KernelLinear(linear_of(shape), kernel)
    x = torch.randn(KERNEL_ROWS, shape[1])
    together = module(x)
    threads = torch.get_num_threads()
    try:
        for rows in range(1, KERNEL_ROWS + 1):
            torch.set_num_threads(1 + rows % 4)
            assert torch.equal(module(x[:rows]), together[:rows])
            assert torch.equal(module(x[-rows:]), together[-rows:])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("shape", SHAPES)
def test_packed_rows_hardly_depend_on_their_company(shape: tuple[int, int]) -> None:
    source = linear_of(shape)
    if not packed_bytes(nn.Sequential(source)):
        pytest.skip("this torch has no oneDNN")
    module = PackedLinear(source)
    x = torch.randn(33, shape[1])
    for rows in range(1, 34):
        torch.testing.assert_close(module(x[:rows]), module(x)[:rows], rtol=1e-5, atol=1e-5)


def test_input_of_any_layout(kernel: CpuKernel) -> None:
    module = KernelLinear(linear_of((12, 20)), kernel)
    for x in (
        torch.randn(20),
        torch.randn(2, 3, 20),
        torch.randn(20, 6).T,
        torch.randn(4, 2, 20)[:, 1],
        torch.randn(4, 25)[:, 5:],
        torch.randn(20).expand(5, 20),
    ):
        torch.testing.assert_close(module(x).double(), exact(module, x), rtol=1e-5, atol=1e-5)
    assert module(torch.randn(0, 20)).shape == (0, 12)
    assert module(torch.randn(2, 0, 20)).shape == (2, 0, 12)


def test_what_linear_refuses_is_refused(kernel: CpuKernel) -> None:
    module = KernelLinear(linear_of((12, 20)), kernel)
    for x in (torch.randn(2, 10), torch.randn(4, 10), torch.randn(2, 20, dtype=torch.float64), torch.randn(2, 40)):
        with pytest.raises(RuntimeError):
            module(x)


def test_gradients_flow_through_linear(kernel: CpuKernel) -> None:
    module = KernelLinear(linear_of((12, 20)), kernel)
    x = torch.randn(2, 20, requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, module.weight.sum(0).expand(2, 20))


class Recorder:
    """A kernel that notes which row counts reach it."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        self.rows.append(x.numel() // weight.shape[1])
        return nn.functional.linear(x, weight, bias)


@pytest.mark.parametrize("shape", SHAPES)
def test_choice_depends_on_the_row_count_alone(shape: tuple[int, int]) -> None:
    recorder = Recorder()
    module = KernelLinear(linear_of(shape), recorder)  # type: ignore[arg-type]
    for rows in (*range(1, 70), *range(69, 0, -1)):
        module(torch.randn(rows, shape[1]))
    assert recorder.rows == [*range(1, 33), *range(32, 0, -1)]


def test_packed_choice_depends_on_the_row_count_alone() -> None:
    module = PackedLinear(linear_of((6, 8)))
    seen: list[int] = []

    def product(x: Tensor, *_: object) -> Tensor:
        seen.append(len(x))
        return x

    module._product = product
    for rows in range(1, 40):
        module(torch.randn(rows, 8))
    assert PACKED_FROM == 4
    assert seen == list(range(4, 40))


def model() -> nn.Module:
    """Two layers that may be replaced, and three that may not."""

    class Special(nn.Linear):
        pass

    return nn.Sequential(
        nn.Linear(8, 6), nn.Sequential(nn.Linear(6, 6)), Special(6, 6), nn.Linear(6, 6).double(), nn.Linear(6, 6).half()
    ).requires_grad_(False)


def kinds(module: nn.Module) -> list[str]:
    return [type(child).__name__ for child in module.modules() if not isinstance(child, nn.Sequential)]


def test_kernel_takes_every_plain_float32_linear(kernel: CpuKernel) -> None:
    target, told = model(), list[str]()
    weights = [id(parameter) for parameter in target.parameters()]
    speedup.speed_up(target, compile_kernel=True, tell=told.append)
    assert kinds(target) == ["KernelLinear", "KernelLinear", "Special", "Linear", "Linear"]
    assert [id(parameter) for parameter in target.parameters()] == weights  # no copy
    assert told == []  # built before


def test_without_the_kernel_weights_are_packed_where_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = packed_bytes(model())
    assert needed == 4 * (8 * 6 + 6 * 6)
    for free, packed in ((2 * needed, True), (2 * needed - 2, False)):
        monkeypatch.setattr(speedup, "machine_bytes", lambda free=free: (free, "free"))
        target, told = model(), list[str]()
        speedup.speed_up(target, compile_kernel=False, tell=told.append)
        assert (kinds(target)[0] == "PackedLinear") is packed
        assert len(told) == 1
        assert ("not packed" in told[0]) is not packed


def test_without_onednn_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    target = model()
    speedup.speed_up(target, compile_kernel=False, tell=print)
    assert kinds(target) == kinds(model())


def test_nothing_is_built_for_a_model_without_such_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedup, "load_kernel", lambda _: pytest.fail("built"))
    target = model().half()
    assert next(replaceable(target), None) is None
    speedup.speed_up(target, compile_kernel=True, tell=print)


def compiler_script(folder: Path, body: str) -> Path:
    script = folder / "compiler"
    script.write_text(f'#!/bin/sh\ncase "$*" in *--version*) echo script; exit 0;; esac\n{body}\n')
    script.chmod(0o755)
    return script


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    told: list[str] = []
    assert load_kernel(told.append) is None
    assert len(told) == 1
    assert "no C++ compiler" in told[0]
    assert "install g++ or set CXX" in told[0]
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert load_kernel(told.append) is None


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("echo 'note: hm' >&2; echo 'x.cpp:1: error: bad vector' >&2; exit 1", "x.cpp:1: error: bad vector"),
        ("exit 3", "exit code 3"),
        ("exit 0", "cpu_kernel.so"),  # built nothing
        ('for last; do :; done; echo text > "$last"', "cpu_kernel.so"),  # built no library
    ],
)
def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, why: str) -> None:
    monkeypatch.setenv("CXX", str(compiler_script(tmp_path, body)))
    monkeypatch.setenv("DRAFTWING_CACHE", str(tmp_path / "cache"))
    told: list[str] = []
    assert load_kernel(told.append) is None
    assert [line for line in told if "decoding will be slower" in line and why in line] == told[-1:]


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CXX", str(compiler_script(tmp_path, "exit 0")))
    monkeypatch.setenv("DRAFTWING_CACHE", str(tmp_path / "file"))
    told: list[str] = []
    assert load_kernel(told.append) is None
    assert "DRAFTWING_CACHE" in told[-1]


def test_built_once_for_each_kind_of_processor(
    kernel: CpuKernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A script stands in for the compiler: it copies a library built before, and notes that it ran."""
    cache = cache_root() / "kernels"
    library = next(cache.glob("cpu-*/cpu_kernel.so"))
    copy = f'for last; do :; done; cp "{library}" "$last"; echo ran >> "{tmp_path}/runs"'
    monkeypatch.setenv("CXX", str(compiler_script(tmp_path, copy)))
    monkeypatch.setenv("DRAFTWING_CACHE", str(tmp_path / "cache"))
    for processor, runs in (("one", 1), ("one", 1), ("two", 2), ("one", 2)):
        monkeypatch.setattr("draftwing.kernels.cpu_kernel._processor", lambda name=processor: name)
        told: list[str] = []
        assert load_kernel(told.append) is not None
        assert (tmp_path / "runs").read_text().count("ran") == runs
    assert not told
    assert os.listdir(tmp_path / "cache") == ["kernels"]
