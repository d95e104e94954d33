"""Fixtures that many tests share, and the rule for tests that need something installed."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

# Before torch is imported: on tiny models a second thread only waits for the first, at the cost of a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Time says nothing about an example on a machine that others use too.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


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


def pytest_configure() -> None:
    """Settle Ray's environment before any test imports Ray, which reads it then."""
    os.environ.update(
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=secrets.token_hex(16),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_enable_worker_prestart="0",
        RAY_prestart_worker_first_driver="0",
        RAY_raylet_start_wait_time_s="120",  # a busy machine takes more than the usual 30 s
    )


@pytest.fixture(scope="session")
def ray_session() -> Iterator[str]:
    """One small Ray on loopback for the whole run; gives its address.

    Ask for it instead of calling ray.init, and ask for fractions of a CPU: there are 4, whatever the machine has.
    """
    require("ray", module="ray")
    import ray

    temporary = Path(tempfile.mkdtemp(prefix="dw-"))  # short: Unix socket paths hold 107 characters
    ray.init(
        address="local",
        num_cpus=4,
        object_store_memory=100 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        namespace="draftwing-tests",
        _node_ip_address="127.0.0.2",
        _temp_dir=str(temporary),
    )
    yield str(ray.get_runtime_context().gcs_address)
    ray.shutdown()
    shutil.rmtree(temporary, ignore_errors=True)
