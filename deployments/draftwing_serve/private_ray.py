"""The Ray that `draftwing serve` runs on: one of its own on loopback, or the cluster that RAY_ADDRESS names.

What is started here is stopped here, by its own process ids, however the command ends.
"""

from __future__ import annotations

import io
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from draftwing.errors import SetupError

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 100 * 2**20  # Serve keeps little in it, and tokens don't pass through
LEAST_CPUS = 4  # Serve's controller, proxy and our deployments need tickets, on a small machine too
# Ray takes 127.0.0.1 as a wish for the machine's outer address; this is loopback as well, and stays.
LOOPBACK = "127.0.0.2"
_EXIT_WAIT_S = 5.0
_REACH_S = 3.0

_PRIVATE_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's workers would give way to every other process of the machine; the engine is not background work.
    "RAY_worker_niceness": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    # On a small machine what Serve does while idle is taken from the engine: half a second is soon enough.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "2000",
    # A replica whose rank is gone can finish nothing: don't wait for it.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
}


@dataclass(slots=True)
class RayHost:
    """owned: started here. logs: where its processes write, kept when keep_logs is set.

    stopping: processes that end from now on are meant to; what Ray says about them is not passed on.
    """

    owned: bool
    logs: Path | None = None
    keep_logs: bool = False
    stopping: bool = False


class _Overheard(io.TextIOBase):
    """Ray prints what its processes report on sys.stdout, which is for results: log lines instead."""

    def __init__(self) -> None:
        self.host: RayHost | None = None

    def write(self, text: str) -> int:
        if text.strip() and (self.host is None or not self.host.stopping):
            logger.warning("%s", text.strip())
        return len(text)


@contextmanager
def ray_running(*, verbose: bool) -> Iterator[RayHost]:
    """Ray, connected. SetupError when the cluster that RAY_ADDRESS names can't be used.

    Inside, sys.stdout is not the real one: Ray writes to it.
    """
    overheard = _Overheard()
    address = os.environ.get("RAY_ADDRESS")
    with redirect_stdout(overheard), _connected(address, verbose) if address else _started(verbose) as host:
        overheard.host = host
        yield host


@contextmanager
def _started(verbose: bool) -> Iterator[RayHost]:
    os.environ.update(_PRIVATE_ENVIRONMENT)
    # A token of this run alone: whoever shares the machine can't use this cluster, and no file in $HOME is written.
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    # Short: Unix sockets in it have at most 107 characters.
    host = RayHost(owned=True, logs=Path(tempfile.mkdtemp(prefix="dw-")))
    before = _children()
    try:
        _start(host, verbose)
        yield host
    finally:
        started = _children() - before
        _shutdown()
        _end(started)
        if host.keep_logs:
            logger.error("logs are kept in %s", host.logs)
        else:
            shutil.rmtree(host.logs or "", ignore_errors=True)


def _start(host: RayHost, verbose: bool) -> None:
    """SetupError where Ray doesn't come up; its logs are kept then."""
    try:
        _init(
            address="local",
            num_cpus=max(os.cpu_count() or 1, LEAST_CPUS),
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            _node_ip_address=LOOPBACK,
            _temp_dir=str(host.logs),
            **_quiet(verbose),
        )
    except Exception as error:  # Ray raises a bare Exception when its processes take too long
        host.keep_logs = True
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise SetupError(
            f"Ray did not start: {reason}; where the machine is very busy or short of memory, try again later"
        ) from error


@contextmanager
def _connected(address: str, verbose: bool) -> Iterator[RayHost]:
    remedy = "unset RAY_ADDRESS to let draftwing start a Ray of its own"
    if address.startswith("ray://"):
        raise SetupError(
            f"RAY_ADDRESS is {address}: Ray's client protocol is not supported; run on a node, or {remedy}"
        )
    try:
        # Ray itself would try for minutes.
        _reach(address)
        _init(address=address, **_quiet(verbose))
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SetupError(f"can't use the Ray at {address} (from RAY_ADDRESS): {reason}; {remedy}") from error
    try:
        yield RayHost(owned=False)
    finally:
        _shutdown()


def _reach(address: str) -> None:
    """Raises OSError or ValueError when nothing listens at host:port. `auto` is for Ray to find."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S):
        pass


def ray_alive() -> bool:
    """Whether the cluster that we are connected to still answers; asking Ray itself would take a minute to fail."""
    import ray

    try:
        _reach(ray.get_runtime_context().gcs_address)
    except (OSError, RuntimeError):
        return False
    return True


def _init(**settings: Any) -> None:
    """Ray puts handlers of its own on signals, which abort the process; ours are put back."""
    import ray

    logging.getLogger("ray").setLevel(settings["logging_level"])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(configure_logging=True, **settings)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _quiet(verbose: bool) -> dict[str, Any]:
    return {"log_to_driver": verbose, "logging_level": logging.INFO if verbose else logging.ERROR}


def _shutdown() -> None:
    import ray

    ray.shutdown()


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _end(processes: set[psutil.Process]) -> None:
    """End what Ray's own shutdown left; a process is known by its id and start time, so never another one."""
    _, alive = psutil.wait_procs(processes, timeout=_EXIT_WAIT_S)
    for act in (psutil.Process.terminate, psutil.Process.kill):
        for process in alive:
            try:
                act(process)
            except psutil.NoSuchProcess:
                continue
        _, alive = psutil.wait_procs(alive, timeout=_EXIT_WAIT_S)
