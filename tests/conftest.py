"""Fixtures that many tests share, and the rule for tests that need something installed."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def require(package: str, *, binary: str | None = None, module: str | None = None) -> None:
    """Skip the calling test where `package` is not installed; under DRAFTWING_REQUIRE_ALL=1 fail instead.

    Found by a binary on the path, an importable module, or both; the binary is named like the package by default.
    """
    if binary is None and module is None:
        binary = package
    has_binary = binary is None or shutil.which(binary) is not None
    has_module = module is None or find_spec(module) is not None
    if has_binary and has_module:
        return
    message = f"needs the package {package}, which is not installed"
    if os.environ.get("DRAFTWING_REQUIRE_ALL") == "1":
        pytest.fail(f"{message} (DRAFTWING_REQUIRE_ALL=1)", pytrace=False)
    pytest.skip(message)
