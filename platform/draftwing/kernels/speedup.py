"""What is done to a loaded model so that a decoding step costs little more than reading its weights."""

from __future__ import annotations

from functools import partial

from torch import nn

from draftwing.checkpoints.cache import Progress, silent
from draftwing.checkpoints.memory import machine_bytes, need_memory
from draftwing.errors import ConfigError, SetupError
from draftwing.kernels import int4
from draftwing.kernels.cpu_kernel import load_kernel
from draftwing.kernels.int8 import Int8Linear
from draftwing.kernels.linear import KernelLinear, PackedLinear, packed_bytes, replace_linears, replaceable
from draftwing.kernels.norm import replace_norms

PACK_FRACTION = 0.5  # of the memory still available that packed copies of the weights may take


def speed_up(
    model: nn.Module, *, compile_kernel: bool, quantization: str | None = None, tell: Progress = silent
) -> None:
    """Give float32 products on a CPU a faster form: our kernel, else packed copies where they leave room.

    ConfigError or SetupError when `quantization` asks for what can't be had here.
    """
    if quantization is not None:
        _quantize(model, quantization, compile_kernel=compile_kernel, tell=tell)
        return
    if next(replaceable(model), None) is None:
        return
    kernel = load_kernel(tell) if compile_kernel else None
    if kernel is not None:
        replace_linears(model, partial(KernelLinear, kernel=kernel))
        replace_norms(model, kernel)
        return
    needed, free = packed_bytes(model), machine_bytes()[0]
    if needed > PACK_FRACTION * free:
        tell(f"weights are not packed for verifying: {needed / 2**20:.0f} of {free / 2**20:.0f} MiB available")
    elif needed:
        tell(f"packing weights for verifying, {needed / 2**20:.0f} MiB more")
        replace_linears(model, PackedLinear)


def _quantize(model: nn.Module, bits: str, *, compile_kernel: bool, tell: Progress) -> None:
    """Put quantized weights in the place of every plain Linear's; with int4, the head and odd shapes take int8."""
    if not compile_kernel:
        raise ConfigError(f"model.quantization {bits} needs the CPU kernel; set model.compile: true")
    kernel = load_kernel(tell)
    if kernel is None:
        raise SetupError(f"model.quantization {bits} needs the CPU kernel, which can't be built here; set it to null")
    linears = [child for _, _, child in replaceable(model)]
    chosen = sum(linear.weight.numel() for linear in linears)
    need_memory(chosen, f"quantizing to {bits}")
    tell(f"quantizing to {bits}: {chosen / 1e6:.0f} million weights; embeddings and mixed experts stay float32")
    head = getattr(model, "lm_head", None)

    def form(linear: nn.Linear) -> nn.Module:
        narrow = bits == "int4" and linear is not head and int4.fits(linear)
        return int4.Int4Linear(linear) if narrow else Int8Linear(linear, kernel)

    replace_linears(model, form)
    replace_norms(model, kernel)
