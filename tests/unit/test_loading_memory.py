"""Memory that may still be taken: the machine's, or what a container's limit leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftwing.checkpoints import memory
from draftwing.checkpoints.memory import cgroup_room, machine_bytes, need_memory
from draftwing.errors import SetupError

GB = 10**9


def proc(root: Path, groups: str, available_kb: int = 8_000_000) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/meminfo").write_text(f"MemTotal: 9000000 kB\nMemFree: 1 kB\nMemAvailable:   {available_kb} kB\n")
    return root / "proc"


def group(root: Path, path: str, limit: str, used: int, droppable: int, *, version: int = 2) -> None:
    folder = root / "cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {droppable}\nslab 7\n")


def test_no_limit(tmp_path: Path) -> None:
    where = proc(tmp_path, "0::/\n")
    assert cgroup_room(tmp_path / "cgroup", where) is None
    assert machine_bytes(tmp_path / "cgroup", where) == (8_000_000 * 1024, "free on this machine")
    group(tmp_path, "", "max", GB, 0)
    assert cgroup_room(tmp_path / "cgroup", where) is None


def test_limit_of_a_container(tmp_path: Path) -> None:
    where = proc(tmp_path, "0::/\n")
    group(tmp_path, "", str(4 * GB), 3 * GB, GB // 2)
    room, words = machine_bytes(tmp_path / "cgroup", where)
    assert room == 4 * GB - 3 * GB + GB // 2
    assert "container" in words


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    where = proc(tmp_path, "0::/a/b\n")
    group(tmp_path, "a/b", str(4 * GB), GB, 0)
    group(tmp_path, "a", str(3 * GB), 2 * GB, 0)
    assert cgroup_room(tmp_path / "cgroup", where) == GB


def test_path_of_the_host_that_is_absent_inside(tmp_path: Path) -> None:
    where = proc(tmp_path, "0::/kubepods/pod1/abc\n")
    group(tmp_path, "", str(2 * GB), GB, 0)
    assert cgroup_room(tmp_path / "cgroup", where) == GB


def test_first_version_of_control_groups(tmp_path: Path) -> None:
    where = proc(tmp_path, "5:cpu:/x\n4:memory:/x\n1:name=systemd:/x\n0::/\n")
    group(tmp_path, "memory/x", str(2 * GB), GB, 5, version=1)
    group(tmp_path, "memory", str(2**63 - 4096), GB, 0, version=1)
    assert cgroup_room(tmp_path / "cgroup", where) == GB + 5


def test_overused_limit_leaves_nothing(tmp_path: Path) -> None:
    where = proc(tmp_path, "0::/\n")
    group(tmp_path, "", str(GB), 2 * GB, 0)
    assert cgroup_room(tmp_path / "cgroup", where) == 0


def test_refusal_names_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "machine_bytes", lambda: (2 * GB, "free on this machine"))
    need_memory(2 * GB, "the model")
    with pytest.raises(SetupError, match=r"the model takes 2\.1 GB of memory and 2\.0 GB is free on this machine; buy"):
        need_memory(int(2.1 * GB), "the model", "buy more")


def test_this_machine_has_some() -> None:
    assert machine_bytes()[0] > 0
