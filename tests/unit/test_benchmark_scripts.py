"""Benchmarks run by their path, from any folder, also those that share code with another or with the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SHARING = [
    file
    for file in sorted((ROOT / "benchmarks").glob("*.py"))
    if "__main__" in (text := file.read_text()) and ("\nfrom benchmarks" in text or "\nfrom tests" in text)
]


@pytest.mark.parametrize("script", SHARING, ids=lambda file: file.stem)
def test_runs_by_its_path(script: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(script), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout


def test_there_are_some() -> None:
    assert SHARING
