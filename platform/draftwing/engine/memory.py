"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int:
    """Free bytes of a GPU, or of this machine within the limit that a container sets."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = _machine_bytes()
    limit = _read_int(CGROUP / "memory.max")
    used = _read_int(CGROUP / "memory.current")
    return free if limit is None or used is None else min(free, limit - used)


def _machine_bytes() -> int:
    for line in MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{MEMINFO} has no MemAvailable line")


def _read_int(path: Path) -> int | None:
    """The number in a control file; None where there is none or it says "max"."""
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() else None
