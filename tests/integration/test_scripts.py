"""The set-up and continuous-integration scripts, run with stand-ins for what they call."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT


def stand_in(folder: Path, name: str, body: str) -> Path:
    """A program of that name that does what the shell lines say."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with .ci/run, two packages to install, and stand-ins that write down how they were called."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / ".ci/apt.txt").write_text("# what tests need\n\nredis-server  # a store\n  prometheus\n")
    (tmp_path / "bin").mkdir()
    stand_in(tmp_path / "bin", "make", 'echo "make $* $DRAFTWING_REQUIRE_ALL" >> calls')
    stand_in(tmp_path / "bin", "apt-get", 'echo "apt-get $*" >> calls')
    return tmp_path


def run_ci(clone: Path, user: int) -> tuple[list[str], str]:
    """Calls that .ci/run made as that user id, and what it said on stderr."""
    stand_in(clone / "bin", "id", f"echo {user}")
    path = f"{clone / 'bin'}:{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", ".ci/run"], cwd=clone, env={"PATH": path}, capture_output=True, text=True, check=True, timeout=60
    )
    return (clone / "calls").read_text().splitlines(), run.stderr


def test_ci_installs_packages_and_runs_every_test(clone: Path) -> None:
    calls, _ = run_ci(clone, user=0)
    assert calls == [
        "apt-get update -q",
        "apt-get install -qy --no-install-recommends redis-server prometheus",
        "make test 1",
    ]


def test_ci_without_root_names_the_packages(clone: Path) -> None:
    calls, said = run_ci(clone, user=1000)
    assert calls == ["make test 1"]
    assert "redis-server prometheus" in said


def test_ci_fails_when_the_tests_fail(clone: Path) -> None:
    stand_in(clone / "bin", "make", "exit 2")
    run = subprocess.run(["bash", ".ci/run"], cwd=clone, env={"PATH": f"{clone / 'bin'}:/usr/bin:/bin"}, check=False)
    assert run.returncode == 2


OLD = 'case "$1" in -V) echo Python 3.9.2;; *) exit 1;; esac'
NO_VENV = 'case "$2" in *ensurepip*) exit 1;; esac'


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (OLD, "is Python 3.9.2; Draftwing needs 3.11 or newer"),
        (NO_VENV, "can't make environments; install its venv module"),
        (None, "not found; install Python 3.11 or newer"),
    ],
)
def test_setup_says_what_is_missing(tmp_path: Path, body: str | None, message: str) -> None:
    python = tmp_path / "python" if body is None else stand_in(tmp_path, "python", body)
    script = ["sh", str(ROOT / "tools/setup.sh"), str(python), "stamp"]
    run = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 3
    assert message in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert not (tmp_path / ".venv").exists()
