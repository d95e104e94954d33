"""What is done to a loaded model so that a decoding step costs little more than reading its weights."""

from __future__ import annotations

from functools import partial

from torch import nn

from draftwing.engine.cache import Progress, silent
from draftwing.engine.cpu_kernel import load_kernel
from draftwing.engine.linear import KernelLinear, PackedLinear, packed_bytes, replace_linears, replaceable
from draftwing.engine.memory import machine_bytes
from draftwing.engine.norm import replace_norms

PACK_FRACTION = 0.5  # of the memory still available that packed copies of the weights may take


def speed_up(model: nn.Module, *, compile_kernel: bool, tell: Progress = silent) -> None:
    """Give float32 products on a CPU a faster form: our kernel, else packed copies where they leave room."""
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
