from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run a coroutine to its end, bounded, so that a hang is a failure."""

    def bounded(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(asyncio.wait_for(work, 10))

    return bounded
