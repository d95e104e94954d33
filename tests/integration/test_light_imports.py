"""The engine loads no Ray and no web framework, and --help loads no torch."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import ROOT

LIST_MODULES = "import json, sys; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
UPWARD = {"ray", "optuna", "fastapi", "starlette", "uvicorn", "draftwing_serve", "draftwing_tuner"}


def modules_after(code: str) -> set[str]:
    """Top-level modules loaded in a fresh interpreter after running the code."""
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\n{LIST_MODULES}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(json.loads(run.stdout.splitlines()[-1]))


def test_engine_modules_load_nothing_above_them() -> None:
    package = ROOT / "platform"
    files = sorted((package / "draftwing").rglob("*.py"))
    names = [".".join(file.relative_to(package).with_suffix("").parts).removesuffix(".__init__") for file in files]
    loaded = modules_after("\n".join(f"import {name}" for name in names if not name.endswith("__main__")))
    assert "draftwing" in loaded
    assert "torch" in loaded
    assert not loaded & UPWARD


def test_help_loads_no_torch() -> None:
    code = "import contextlib, draftwing.cli\nwith contextlib.suppress(SystemExit): draftwing.cli.main(['--help'])"
    loaded = modules_after(code)
    assert "draftwing" in loaded
    assert not loaded & {"torch", "transformers", "ray", "fastapi", "optuna", "pyarrow"}
