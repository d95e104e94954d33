"""Our folder platform/ must never hide the standard library's module of that name."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.conftest import ROOT

STDLIB_FILE = str(Path(sysconfig.get_path("stdlib")) / "platform.py")


def test_has_no_init_file() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_from_the_repository_root() -> None:
    code = "import platform, uuid; print(platform.__file__); platform.system()"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == STDLIB_FILE


def test_under_pytest_with_the_root_on_the_path() -> None:
    import platform

    assert str(ROOT) in sys.path
    assert platform.__file__ == STDLIB_FILE


def test_inside_a_ray_task(ray_session: str) -> None:
    import ray

    @ray.remote(num_cpus=0.1, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}})
    def look() -> tuple[bool, str, str]:
        import platform
        import sys

        return str(ROOT) in sys.path, str(platform.__file__), platform.system()

    root_on_path, file, system = ray.get(look.remote())
    assert root_on_path
    assert file == STDLIB_FILE
    assert system
