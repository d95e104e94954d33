"""How much memory this process may still take, and the refusal that names both numbers. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from draftwing.errors import SetupError

if TYPE_CHECKING:
    import torch  # at run time only where a GPU is asked about

CGROUP = Path("/sys/fs/cgroup")
PROC = Path("/proc")


def _number(path: Path) -> int | None:
    """A cgroup file's number of bytes; None where it is absent or says "max"."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _stat(path: Path, key: str) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == key), 0)


def _room(group: Path, limit: str, used: str, cache_key: str) -> int | None:
    """Bytes left under one cgroup's limit; file cache that can be dropped counts as room."""
    most, now = _number(group / limit), _number(group / used)
    if most is None or now is None:
        return None
    return max(most - now + _stat(group / "memory.stat", cache_key), 0)


def cgroup_room(cgroup: Path = CGROUP, proc: Path = PROC) -> int | None:
    """Bytes left under the tightest memory limit on this process's control groups; None where there is no limit."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    rooms = []
    for line in lines:
        _, controllers, where = line.split(":", 2)
        if controllers == "":
            root, names = cgroup, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = cgroup / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = root / where.lstrip("/")
        # In a container the path may be the host's and absent here; then only the root, which is ours, is read.
        groups = [group, *group.parents] if group.is_dir() else [root]
        rooms += [_room(one, *names) for one in groups if one == root or root in one.parents]
    known = [room for room in rooms if room is not None]
    return min(known) if known else None


def machine_bytes(cgroup: Path = CGROUP, proc: Path = PROC) -> tuple[int, str]:
    """Bytes of main memory this process may still take, and what bounds them."""
    free = _stat(proc / "meminfo", "MemAvailable:") * 1024
    room = cgroup_room(cgroup, proc)
    if room is not None and room < free:
        return room, "left under this container's memory limit"
    return free, "free on this machine"


def available_bytes(device: torch.device) -> int:
    """Free bytes of a GPU, or of main memory within the limit that a container sets."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    return machine_bytes()[0]


def need_memory(needed: int, what: str, remedy: str = "free memory or use a smaller model") -> None:
    """SetupError unless `needed` bytes of main memory can be taken."""
    there, where = machine_bytes()
    if needed > there:
        raise SetupError(f"{what} takes {needed / 1e9:.1f} GB of memory and {there / 1e9:.1f} GB is {where}; {remedy}")
