"""Fixtures of the tests that run several parts together."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from draftwing.checkpoints.hub import DEMO_PACKAGE, demo_model
from tests.conftest import require


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The demo model's folder: converted now, once, if nothing on this machine has used it before."""
    require(DEMO_PACKAGE, module=DEMO_PACKAGE.replace("-", "_"))
    return demo_model(lambda line: print(line, file=sys.stderr))
