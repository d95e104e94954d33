"""The functions of `cpu_kernel.cpp`: built once for this machine into the cache, called through ctypes.

ctypes and a plain C interface, because the build then needs a compiler alone (no headers of torch or Python), takes
seconds, and fits every version of torch.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

import torch
from torch import Tensor

from draftwing.checkpoints.cache import Progress, cache_root, made_whole, only_one
from draftwing.errors import SetupError

SOURCE = Path(__file__).with_name("cpu_kernel.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC")
BUILD_SECONDS = 300


class CpuKernel:
    """Functions of contiguous float32 tensors on a CPU."""

    def __init__(self, library: Path) -> None:
        """OSError when the library doesn't load here."""
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        functions = ctypes.CDLL(str(library))
        self._float32 = functions.product_float32
        self._float32.argtypes = [pointer, pointer, pointer, pointer, size, size, size, ctypes.c_int]
        self._float32.restype = None
        self._int8 = functions.product_int8
        self._int8.argtypes = [pointer, pointer, pointer, pointer, pointer, size, size, size, ctypes.c_int]
        self._int8.restype = None
        self._rms_norm = functions.rms_norm
        self._rms_norm.argtypes = [pointer, pointer, pointer, size, size, ctypes.c_float, ctypes.c_int]
        self._rms_norm.restype = None

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + bias: x [..., in], weight W [out, in], bias [out]."""
        out_features, in_features = weight.shape
        y = x.new_empty((*x.shape[:-1], out_features))
        self._float32(
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            x.data_ptr(),
            y.data_ptr(),
            x.numel() // in_features,
            in_features,
            out_features,
            torch.get_num_threads(),
        )
        return y

    def product_int8(self, x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
        """x (scales W)^T + bias: weight W [out, in] int8, scales [out]."""
        out_features, in_features = weight.shape
        y = x.new_empty((*x.shape[:-1], out_features))
        self._int8(
            weight.data_ptr(),
            scales.data_ptr(),
            None if bias is None else bias.data_ptr(),
            x.data_ptr(),
            y.data_ptr(),
            x.numel() // in_features,
            in_features,
            out_features,
            torch.get_num_threads(),
        )
        return y

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """x / sqrt(mean(x^2) + epsilon) * weight over the last dimension; weight [size]."""
        y = torch.empty_like(x)
        size = x.shape[-1]
        self._rms_norm(
            x.data_ptr(),
            weight.data_ptr(),
            y.data_ptr(),
            x.numel() // size,
            size,
            epsilon,
            torch.get_num_threads(),
        )
        return y


def find_compiler() -> str | None:
    """$CXX, else the first C++ compiler on the path."""
    if named := os.environ.get("CXX"):
        return shutil.which(named)
    return next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def _run(*command: str) -> str:
    """A command's stdout. OSError or subprocess.SubprocessError when it fails."""
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=True, timeout=BUILD_SECONDS
    ).stdout


def _processor() -> str:
    """What `-march=native` depends on: a cache folder may be shared by different machines."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.system()} {platform.machine()} {platform.processor()} {features}"


def _build(compiler: str, progress: Progress) -> Path:
    """The library, built where the cache lacks it. SetupError, OSError or subprocess.SubprocessError."""
    version = _run(compiler, "--version")
    identity = "\n".join((SOURCE.read_text(encoding="utf-8"), *FLAGS, version, _processor()))
    folder = cache_root() / "kernels" / f"cpu-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        with only_one(folder, progress):
            if not folder.is_dir():
                progress(f"building the kernel for this machine's CPU once, with {compiler}")
                with made_whole(folder) as work:
                    _run(compiler, *FLAGS, str(SOURCE), "-o", str(work / "cpu_kernel.so"))
    return folder / "cpu_kernel.so"


def load_kernel(progress: Progress) -> CpuKernel | None:
    """The kernel, or None where it can't be built or loaded; progress hears why."""
    compiler = find_compiler()
    if compiler is None:
        progress("no C++ compiler found, so decoding on this CPU will be slower; install g++ or set CXX")
        return None
    try:
        return CpuKernel(_build(compiler, progress))
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines()
        why = next((line for line in lines if "error" in line), lines[0] if lines else f"exit code {error.returncode}")
    except (SetupError, OSError, subprocess.SubprocessError) as error:
        why = str(error)
    progress(f"the CPU kernel can't be built with {compiler}, so decoding will be slower: {why[:300]}")
    return None
