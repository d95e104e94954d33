"""Replays as Ray tasks: independent jobs over one shared thing, on every CPU; results don't depend on how many.

The Ray is one of its own on loopback, stopped afterwards, or the cluster that RAY_ADDRESS names.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil

from draftwing.errors import SetupError

S = TypeVar("S")
J = TypeVar("J")
R = TypeVar("R")

OBJECT_STORE_BYTES = 128 * 2**20
# Ray takes 127.0.0.1 as a wish for the machine's outer address; this is loopback as well, and stays.
LOOPBACK = "127.0.0.2"
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_raylet_start_wait_time_s": "120",  # a busy machine takes more than the usual 30 s
}
REACH_S, EXIT_WAIT_S = 3.0, 5.0


class Spread(Protocol):
    """work(shared, job) for each job, in the order of the jobs. work: a function of a module, shared and jobs plain."""

    def __call__(self, work: Callable[[S, J], R], shared: S, jobs: Seq[J]) -> list[R]: ...


def in_turn(work: Callable[[S, J], R], shared: S, jobs: Seq[J]) -> list[R]:
    """In this process, one after another."""
    return [work(shared, job) for job in jobs]


@contextmanager
def ray_tasks() -> Iterator[Spread]:
    """Each job a Ray task of one CPU; what is shared is put into the object store once.

    SetupError where Ray isn't installed or can't be reached. What a job raises is raised here.
    """
    if find_spec("ray") is None:
        raise SetupError("replays run as Ray tasks, and ray is not installed; install draftwing[tune]")
    with redirect_stdout(sys.stderr):  # Ray prints on stdout, which is for results
        address = os.environ.get("RAY_ADDRESS")
        with _there() or (_connected(address) if address else _started()):
            yield partial(_spread, {})


def _there() -> AbstractContextManager[None] | None:
    """Where this process is connected already, nothing to do. Ray is not imported: it reads variables when it is."""
    ray = sys.modules.get("ray")
    return nullcontext() if ray is not None and ray.is_initialized() else None


def _spread(known: dict[int, tuple[Any, Any]], work: Callable[[S, J], R], shared: S, jobs: Seq[J]) -> list[R]:
    """known: by identity, what was put before, held so that no other thing gets its identity."""
    import ray

    if id(shared) not in known:
        known[id(shared)] = shared, ray.put(shared)
    task = ray.remote(num_cpus=1)(_task)
    try:
        found: list[R] = ray.get([task.remote(work, known[id(shared)][1], job) for job in jobs])
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise SetupError(f"a replay task was lost: {str(error).strip().splitlines()[0]}; run it again") from error
    return found


def _task(work: Callable[[Any, Any], Any], shared: Any, job: Any) -> Any:
    return work(shared, job)


@contextmanager
def _started() -> Iterator[None]:
    # A token of this run alone: whoever shares the machine can't use this Ray, and no file in $HOME is written.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in (*ENVIRONMENT, *token)}
    os.environ.update(ENVIRONMENT | token)
    folder = Path(tempfile.mkdtemp(prefix="dw-"))  # short: Unix sockets in it have at most 107 characters
    local = {"num_cpus": os.cpu_count() or 1, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    already = set(psutil.Process().children(recursive=True))
    try:
        with _named("can't start Ray for the replay tasks (run the same command again: it goes on)"):
            _init(address="local", _node_ip_address=LOOPBACK, _temp_dir=str(folder), **local)
        yield
    finally:
        started = set(psutil.Process().children(recursive=True)) - already
        _shutdown()
        _end(started)
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _connected(address: str) -> Iterator[None]:
    remedy = "unset RAY_ADDRESS to let draftwing start a Ray of its own"
    with _named(f"can't use the Ray at {address} (from RAY_ADDRESS; {remedy})"):
        if address != "auto":  # Ray itself would try for minutes
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
        _init(address=address)
    try:
        yield
    finally:
        _shutdown()


@contextmanager
def _named(what: str) -> Iterator[None]:
    """What goes wrong with Ray, in one line."""
    try:
        yield
    except Exception as error:  # Ray raises plain ones
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SetupError(f"{what}: {reason}") from error


def _init(**settings: Any) -> None:
    """Ray puts handlers of its own on signals, which abort the process; ours are put back."""
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end(processes: set[psutil.Process]) -> None:
    """They end by themselves, as a rule; until then they write into the folder."""
    _, alive = psutil.wait_procs(processes, timeout=EXIT_WAIT_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=EXIT_WAIT_S)


def _shutdown() -> None:
    import ray

    ray.shutdown()
