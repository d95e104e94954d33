"""Memory does not grow over many mixed steps: `benchmarks/memory_run.py` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT


def memory_run(tmp_path: Path, *flags: str) -> dict[str, Any]:
    out = tmp_path / "memory.json"
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "memory_run.py"), "--json", str(out), *flags],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,  # 1 where the bound is broken, which the numbers show
        timeout=7000,
    )
    result: dict[str, Any] = json.loads(out.read_text())
    return result


@pytest.mark.slow
@pytest.mark.parametrize("method", ["draft_model", "ngram", "suffix"])
def test_memory_does_not_grow(tmp_path: Path, method: str) -> None:
    result = memory_run(tmp_path, "--method", method)
    assert result["growth"] <= 1.02, result
    assert result["failures"] == 0
    for name in ("cancelled", "preemptions", "prefix_hits", "accepted", "rejected"):
        assert result[name] > 100, f"{name}: {result[name]}"
