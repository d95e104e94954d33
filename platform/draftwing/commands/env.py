"""`draftwing env`: what a bug report needs to say about the machine, ready to paste. It never fails.

Values of variables that may be secret are hidden. Ray is looked up, not imported.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from draftwing import __version__
from draftwing.commands.common import print_json
from draftwing.config_errors import HIDDEN

SCHEMA = 1
GIB = 2**30
PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface-hub",
    "accelerate",
    "gguf",
    "numpy",
    "pydantic",
    "pyzmq",
    "msgpack",
    "ray",
    "fastapi",
    "uvicorn",
    "prometheus-client",
)
# Instruction sets that decide how fast matrix products are.
CPU_FLAGS = re.compile(r"avx2|fma|f16c|avx512\w*|avx_vnni\w*|amx_\w+|asimd\w*|sve\w*|bf16|i8mm")
VARIABLES = re.compile(r"(DRAFTWING|HF|TRANSFORMERS|TORCH|PYTORCH|CUDA|OMP|MKL|RAY)_\w+")
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "print what a bug report needs: versions, machine, devices"
    parser = subparsers.add_parser("env", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    report = {name: _attempt(section) for name, section in SECTIONS.items()}
    if args.json:
        print_json({"schema": SCHEMA, **report})
        return 0
    for name, facts in report.items():
        sys.stdout.write(f"{name}\n" if facts else f"{name}: none\n")
        for key, value in facts.items():
            sys.stdout.write(f"  {key}: {_text(value)}\n")
    return 0


def _attempt(section: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A section's facts. What is broken on the machine is a fact too, and must not hide the others."""
    try:
        return section()
    except Exception as error:  # noqa: BLE001 (a broken torch or driver can raise anything)
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "; ".join(map(_text, value)) or "none"
    return str(value)


def _software() -> dict[str, Any]:
    return {
        "draftwing": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "executable": sys.executable,
        "system": platform.platform(),
    }


def _cpu() -> dict[str, Any]:
    info = _read("/proc/cpuinfo")
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", info, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    names = flags[1].split() if flags else []
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    return {
        "model": model[1] if model else platform.processor() or None,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "quota_cores": round(int(quota) / int(period), 2) if quota.isdigit() and period.strip().isdigit() else None,
        "flags": " ".join(sorted(name for name in names if CPU_FLAGS.fullmatch(name))) or None,
    }


def _memory() -> dict[str, Any]:
    import psutil

    memory = psutil.virtual_memory()
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return {
        "total_gib": round(memory.total / GIB, 2),
        "available_gib": round(memory.available / GIB, 2),
        "limit_gib": round(int(limit) / GIB, 2) if limit.isdigit() else None,
    }


def _torch() -> dict[str, Any]:
    import torch

    available = torch.cuda.is_available()
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())] if available else []
    return {
        "version": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda_built": torch.version.cuda,
        "cuda": available,
        "devices": [
            {
                "name": device.name,
                "memory_gib": round(device.total_memory / GIB, 2),
                "capability": f"{device.major}.{device.minor}",
            }
            for device in devices
        ],
    }


def _packages() -> dict[str, Any]:
    return {name: _version(name) for name in PACKAGES}


def _variables() -> dict[str, Any]:
    """Those that change what the engine or its libraries do."""
    found = {name: os.environ[name] for name in sorted(os.environ) if VARIABLES.fullmatch(name)}
    return {name: HIDDEN if SECRET.search(name) else _without_login(value) for name, value in found.items()}


def _without_login(value: str) -> str:
    """An address without its user and password."""
    return re.sub(r"(?<=://)[^/@\s]+@", f"{HIDDEN}@", value)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _read(path: str) -> str:
    """A file of the system's; empty where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "software": _software,
    "cpu": _cpu,
    "memory": _memory,
    "torch": _torch,
    "packages": _packages,
    "variables": _variables,
}
