"""The wheel works in an environment of its own: command, packages, data files."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGES = {"draftwing": "platform", "draftwing_serve": "deployments", "draftwing_tuner": "tuner"}


@dataclass(frozen=True)
class Installed:
    wheel: Path
    folder: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the clean environment, away from the checkout."""
        program = self.folder / "bin" / command[0]
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder)}
        return subprocess.run(
            [str(program), *command[1:]], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in a clean environment that borrows third-party packages from this one, but not its draftwing."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*pip, *build], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "env"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    subprocess.run(
        [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)],
        check=True,
        capture_output=True,
    )
    # Borrow only now, or pip would find a draftwing there. The path file of an editable install is not followed.
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return Installed(wheel, environment)


def test_packages_come_from_the_wheel(installed: Installed) -> None:
    code = f"import importlib; [print(importlib.import_module(name).__file__) for name in {list(PACKAGES)}]"
    run = installed.run("python", "-c", code)
    assert run.returncode == 0, run.stderr
    files = run.stdout.split()
    assert len(files) == len(PACKAGES)
    assert all(file.startswith(str(installed.folder)) for file in files)


def test_help(installed: Installed) -> None:
    run = installed.run("draftwing", "--help")
    assert run.returncode == 0, run.stderr
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    commands = project["entry-points"]["draftwing.commands"]
    assert commands
    assert all(re.search(rf"^ +{command} ", run.stdout, re.MULTILINE) for command in commands)
    assert "can't be loaded" not in run.stdout


def test_help_needs_the_engine_alone(installed: Installed) -> None:
    names = ["ray", "fastapi", "uvicorn", "starlette", "optuna", "pyarrow", "torch"]
    absent = f"import sys; sys.modules.update(dict.fromkeys({names}))"
    run = installed.run("python", "-c", f"{absent}; from draftwing.cli import main; sys.exit(main(['--help']))")
    assert run.returncode == 0, run.stderr
    assert "can't be loaded" not in run.stdout


def test_all_files_are_in_the_wheel(installed: Installed) -> None:
    inside = set(zipfile.ZipFile(installed.wheel).namelist())
    for package, root in PACKAGES.items():
        files = [file for file in (ROOT / root / package).rglob("*") if file.is_file() and file.suffix != ".pyc"]
        missing = {str(file.relative_to(ROOT / root)) for file in files} - inside
        assert not missing
        assert f"{package}/py.typed" in inside
    assert {"LICENSE", "NOTICE"} <= {Path(name).name for name in inside if "dist-info/licenses/" in name}


def test_plain_install_asks_for_no_ray(installed: Installed) -> None:
    wheel = zipfile.ZipFile(installed.wheel)
    (name,) = [entry for entry in wheel.namelist() if entry.endswith("dist-info/METADATA")]
    needs = [line for line in wheel.read(name).decode().splitlines() if line.startswith("Requires-Dist: ")]
    ray = [line for line in needs if line.startswith("Requires-Dist: ray")]
    assert any(line.startswith("Requires-Dist: torch") for line in needs)
    assert ray
    assert all("extra ==" in line for line in ray)
