"""`draftwing serve`: checks, a Ray, the application, and then waiting until told to stop.

All that can be wrong with the request is found before anything heavy starts, and nothing that was started outlives it.
"""

from __future__ import annotations

import errno
import http.client
import json
import logging
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from draftwing.checkpoints.hub import resolve_model
from draftwing.config import Config
from draftwing.errors import ConfigError, DraftwingError, SetupError
from draftwing_serve.private_ray import RayHost, ray_alive, ray_running
from draftwing_serve.progress import Progress

DRAIN_S = 30.0
_POLL_S = 0.3
_GROUP_SIGNAL_S = 0.3  # a signal to the whole process group ends Ray too, and that shows by then
_WATCH_S = 3.0
_HTTP_WAIT_S = 30.0
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_ERRORS: dict[int, type[DraftwingError]] = {2: ConfigError, 3: SetupError}
_ENDING = (signal.SIGINT, signal.SIGTERM)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Stopped(BaseException):
    """SIGINT or SIGTERM, raised where the main thread is."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 130 if number == signal.SIGINT else 0


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """factory: what makes the engine in the rank, None: the config's own. as_json: print the address as JSON."""

    factory: str | None = None
    as_json: bool = False
    verbose: bool = False
    results: TextIO = field(default_factory=lambda: sys.stdout)


def run(config: Config, options: ServeOptions) -> int:
    """Serve until a signal; the exit code."""
    progress = Progress()
    try:
        with _signals():
            check_address(config.server.host, config.server.port)
            config = _with_absolute_path(config)
            _check_model(config, progress)
            if config.server.host not in _LOOPBACK and config.server.keys is None:
                progress.warn(f"{config.server.host} is open to other machines and server.keys is not set")
            progress.tell("starting Ray")
            with ray_running(verbose=options.verbose) as ray_host:
                _serve(config, options, ray_host, progress)
    except Stopped as stopped:
        progress.tell("stopped")
        return stopped.exit_code
    finally:
        progress.close()
    return 0


def _with_absolute_path(config: Config) -> Config:
    """The replicas may have another working directory."""
    path = Path(config.model.path)
    if not path.exists():
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"path": str(path.absolute())})})


def _check_model(config: Config, progress: Progress) -> None:
    """Refuse a model that can't be served before Ray starts.

    Device and memory are this machine's, so they are looked at only where no RAY_ADDRESS points to others.
    """
    folder = resolve_model(config.model, progress.tell)
    elsewhere = bool(os.environ.get("RAY_ADDRESS"))
    if config.parallel.ranks > 1:
        from draftwing.parallel.sharded import check_ranks

        check_ranks(config, folder, here=not elsewhere)
    if elsewhere:
        return
    from draftwing.engine.loading import preflight

    model = config.model
    preflight(
        folder,
        dtype=model.dtype,
        device=model.device,
        quantization=model.quantization,
        trust_remote_code=model.trust_remote_code,
        ranks=config.parallel.ranks,
    )


def check_address(host: str, port: int) -> None:
    """SetupError when nothing can listen there."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise SetupError(f"server.host {host!r} is not an address of this machine: {error.strerror}") from error
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        # Not SO_REUSEPORT: Serve sets it, and would share a port with another server unnoticed.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen()
        except PermissionError as error:
            raise SetupError(
                f"port {port} on {host} needs root; choose one above 1023, for example --port 8000"
            ) from error
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise SetupError(f"server.host {host!r} is not an address of this machine") from error
            raise SetupError(
                f"port {port} on {host} can't be used ({error.strerror}); stop what listens there, or choose another "
                f"with --port, for example --port {port % 65535 + 1}"
            ) from error


def _serve(config: Config, options: ServeOptions, ray_host: RayHost, progress: Progress) -> None:
    from draftwing_serve.app import APPLICATION

    with _serve_started(config, ray_host):
        try:
            _deploy(config, options, progress)
            url = _url(config)
            _wait_http(config)
            progress.close()
            _announce(config, options, url)
            _watch()
        except Stopped:
            with suppress(Stopped):  # a second signal: don't wait for requests
                time.sleep(_GROUP_SIGNAL_S)
                if ray_alive():
                    _drain(progress)
            raise
        except DraftwingError:
            ray_host.keep_logs = ray_host.owned and not _explained(APPLICATION)
            raise
        finally:
            _ignore_signals()
            ray_host.stopping = not options.verbose
            progress.tell("stopping")


@contextmanager
def _serve_started(config: Config, ray_host: RayHost) -> Iterator[None]:
    """Serve with our HTTP options. SetupError when it runs already with others, or has our application."""
    from ray import serve

    from draftwing_serve import board
    from draftwing_serve.app import APPLICATION
    from draftwing_serve.ray_edge import shutdown_serve
    from draftwing_serve.steering import pause_of

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    mine = not _check_running_serve(config)
    board.clear(APPLICATION)
    board.clear(pause_of(APPLICATION))
    try:
        if mine:
            serve.start(
                proxy_location="HeadOnly",
                http_options={"host": config.server.host, "port": config.server.port},
                logging_config=_serve_logging(),
            )
        yield
    finally:
        if not ray_alive():
            pass
        elif mine:
            shutdown_serve()
        else:
            serve.delete(APPLICATION)


def _check_running_serve(config: Config) -> bool:
    """Whether Serve runs on this Ray already; SetupError when it can't take our application."""
    from ray import serve
    from ray.serve.context import _get_global_client

    from draftwing_serve.app import APPLICATION

    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        return False
    has = (client.http_config.host, client.http_config.port)
    wants = (config.server.host, config.server.port)
    if has != wants:
        raise SetupError(
            f"Ray Serve already runs on this Ray at {has[0]}:{has[1]}, and the config asks for {wants[0]}:{wants[1]}; "
            f"use --host {has[0]} --port {has[1]}, or unset RAY_ADDRESS to let draftwing start a Ray of its own"
        )
    if APPLICATION in serve.status().applications:
        raise SetupError(
            f"an application named {APPLICATION!r} already runs on this Ray; stop it first, or unset RAY_ADDRESS"
        )
    return True


def _deploy(config: Config, options: ServeOptions, progress: Progress) -> None:
    """Deploy and wait until the application answers. Raises the replica's own error."""
    from ray import serve

    from draftwing_serve import board
    from draftwing_serve.app import APPLICATION, build_with, rank_bundles, rank_gpus
    from draftwing_serve.rank_actor import DEFAULT_FACTORY
    from draftwing_serve.ray_edge import shortage

    application = build_with(config, factory=options.factory or DEFAULT_FACTORY)
    target = serve.RunTarget(application, name=APPLICATION, route_prefix="/", logging_config=_serve_logging())
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    if short := shortage(rank_bundles(config, rank_gpus(config))):
        progress.warn(short)
    progress.tell("starting the replicas")
    shown = ""
    while True:
        notice = board.read(APPLICATION)
        if notice.get("state") == "failed":
            raise _ERRORS.get(notice["exit_code"], DraftwingError)(notice["error"])
        if (detail := notice.get("detail", "")) and detail != shown:
            progress.tell(shown := detail)
        status = serve.status().applications.get(APPLICATION)
        if status is not None and status.status == "RUNNING":
            return
        if status is not None and status.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            raise DraftwingError(f"the application did not start: {_last_line(status.message)}")
        time.sleep(_POLL_S)


def _watch() -> None:
    """Wait for a signal, while Ray lives; replicas and Serve's own processes it restarts itself."""
    while ray_alive():
        time.sleep(_WATCH_S)
    raise DraftwingError("Ray has stopped, and with it the server; start it again")


def _drain(progress: Progress) -> None:
    """Let requests under way finish; new ones are refused."""
    import ray
    from ray import serve

    from draftwing_serve.app import APPLICATION, TARGET

    progress.tell("finishing the requests under way (once more to stop at once)")
    try:
        serve.get_deployment_handle(TARGET, APPLICATION).drain.remote(DRAIN_S).result(timeout_s=2 * DRAIN_S)
    except (ray.exceptions.RayError, TimeoutError, DraftwingError) as error:
        progress.warn(f"not drained: {_last_line(str(error))}")


def _wait_http(config: Config) -> None:
    """The server answers where it was told to listen."""
    host = _ANYWHERE.get(config.server.host, config.server.host)
    deadline = time.monotonic() + _HTTP_WAIT_S
    while True:
        connection = http.client.HTTPConnection(host, config.server.port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        if time.monotonic() > deadline:
            raise SetupError(f"nothing answers at {_url(config)}/health, though the replicas are up")
        time.sleep(_POLL_S)


def _announce(config: Config, options: ServeOptions, url: str) -> None:
    name = config.model.served_name
    if options.as_json:
        line = json.dumps({"schema": "draftwing.serve/1", "url": url, "model": name, "policy": config.policy.mode})
    else:
        body = json.dumps({"model": name, "prompt": "The quick brown fox", "max_tokens": 32, "temperature": 0})
        key = " -H 'Authorization: Bearer YOUR_KEY'" if config.server.keys else ""
        line = (
            f"{name} is served at {url} (policy {config.policy.mode}). Ctrl-C stops it. Try:\n\n"
            f"  curl {url}/v1/completions -H 'Content-Type: application/json'{key} -d {shlex.quote(body)}\n\n"
            f"{url}/dash shows whether speculation pays, {url}/metrics is for Prometheus.\n"
        )
    options.results.write(line + "\n")
    options.results.flush()


def _url(config: Config) -> str:
    host = _ANYWHERE.get(config.server.host, config.server.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{config.server.port}"


def _serve_logging() -> dict[str, Any]:
    return {"log_level": "WARNING", "enable_access_log": False}


def _explained(application: str) -> bool:
    """Whether the failure is the replica's own clear error, so that no log is needed to understand it."""
    from draftwing_serve import board

    return board.read(application).get("exit_code") in _ERRORS


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason given"


@contextmanager
def _signals() -> Iterator[None]:
    """SIGINT and SIGTERM raise Stopped."""

    def stop(number: int, _frame: object) -> None:
        raise Stopped(number)

    before = [(number, signal.signal(number, stop)) for number in _ENDING]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _ignore_signals() -> None:
    """What is left to do is bounded and must be done."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
