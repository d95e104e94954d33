"""Starts and stops a rank as a subprocess, and says why when it doesn't come up."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Any

from draftwing.errors import ConfigError, DraftwingError, SetupError
from draftwing.parallel.endpoint import Endpoint
from draftwing.parallel.place import ONLY_RANK, RankPlace
from draftwing.parallel.rank import DEFAULT_FACTORY

_ERRORS: dict[int, type[DraftwingError]] = {2: ConfigError, 3: SetupError}
_KILL_WAIT_S = 10.0
_LEAVE_S = 5.0


class RankProcess:
    """A running rank. Blocking, and safe to use from a worker thread; `with` stops it.

    config_json goes through stdin, not through arguments that anyone on the machine can read. The rank logs to our
    stderr, and ends when this process ends, however that happens.
    """

    def __init__(
        self,
        config_json: str,
        *,
        factory: str = DEFAULT_FACTORY,
        host: str = "127.0.0.1",
        advertise: str | None = None,
        place: RankPlace = ONLY_RANK,
        env: dict[str, str] | None = None,
    ) -> None:
        read_fd, write_fd = os.pipe()
        command = [sys.executable, "-m", "draftwing.parallel.rank", "--factory", factory, "--host", host]
        command += ["--rank", str(place.rank), "--world-size", str(place.world_size), "--store", place.store]
        command += ["--parent", str(os.getpid()), "--report-fd", str(write_fd)]
        command += ["--advertise", advertise] if advertise else []
        self.endpoint: Endpoint | None = None
        self.store = ""  # of rank 0 of several, once it is open
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=2,  # stdout is for results
                pass_fds=(write_fd,),
                env={**os.environ, **(env or {}), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                start_new_session=True,  # a Ctrl-C at the terminal is the parent's to handle
            )
        except OSError:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        self._reports = _Lines(read_fd)
        self._feed(config_json)

    def wait_ready(self, timeout_s: float, on_progress: Callable[[str], None] = lambda _: None) -> Endpoint:
        """Where the rank serves, once it does. on_progress gets a line for each loading step. For rank 0 alone.

        Raises the rank's own ConfigError or SetupError, DraftwingError when it failed otherwise, SetupError when it is
        not ready in time; the process is gone then.
        """
        deadline = monotonic() + timeout_s
        while (state := self._next_state(deadline)).get("state") != "ready":
            match state["state"]:
                case "listening":
                    self.endpoint = Endpoint.from_dict(state["endpoint"])
                case "store":
                    self.store = state["address"]
                case "loading":
                    on_progress(state["detail"])
                case "failed":
                    self._leave()
                    raise _ERRORS.get(state["exit_code"], DraftwingError)(state["error"])
        assert self.endpoint is not None
        return self.endpoint

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code (negative: the signal that killed it), or None while it runs."""
        return self._process.poll()

    def stop(self, grace_s: float = 5.0) -> int:
        """End the rank: SIGTERM, then SIGKILL after grace_s. Returns the exit code; fine to call again."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._reports.close()
        return self._process.wait(_KILL_WAIT_S)

    def _leave(self) -> int:
        """Let a rank that is ending of itself do so, so that its exit code is its own."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_S)
        return self.stop()

    def __enter__(self) -> RankProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _feed(self, config_json: str) -> None:
        assert self._process.stdin is not None
        # Broken: it is dead already; wait_ready finds out and says so.
        with suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(config_json.encode())

    def _next_state(self, deadline: float) -> dict[str, Any]:
        try:
            line = self._reports.next(deadline)
        except TimeoutError:
            self.stop()
            raise SetupError("the rank was not ready in time; raise the start timeout, or see its log") from None
        if line is not None:
            state: dict[str, Any] = json.loads(line)
            return state
        code = self._leave()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        hint = "; the machine may be out of memory" if code == -signal.SIGKILL else ""
        raise DraftwingError(f"the rank {how} before it was ready{hint}; see its log")


class _Lines:
    """Lines from a pipe, with a deadline."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._buffer = b""

    def next(self, deadline: float) -> bytes | None:
        """The next line, or None at the end. Raises TimeoutError at the deadline (monotonic time)."""
        while b"\n" not in self._buffer:
            chunk = self._read(deadline)
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _read(self, deadline: float) -> bytes:
        if self._fd is None:
            return b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._fd, selectors.EVENT_READ)
            if not selector.select(max(deadline - monotonic(), 0)):
                raise TimeoutError
        return os.read(self._fd, 65536)
