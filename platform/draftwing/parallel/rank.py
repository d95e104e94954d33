"""A rank as a process: build the engine a config names, serve it behind the channel, end with the parent.

`python -m draftwing.parallel.rank` reads the config (JSON) from stdin. `RankProcess` in `process.py` starts it; a Ray
actor may call `run_rank` itself. What happens is reported as JSON lines, each with a `state`:

    listening  endpoint           the channel answers from now on, though requests are refused until ready
    loading    detail             progress, any number of times
    store      address            of rank 0 of several: where the others find it
    ready
    failed     error, exit_code   the last line; an error the user can act on, or exit code 1

Every rank of a replica is this same entry, told its place (`RankPlace`). Rank 0 serves the channel, and the others
follow its steps (`sharded.py`); they listen to no client.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from draftwing.errors import DraftwingError
from draftwing.logs import configure_logging
from draftwing.parallel.channel import ChannelServer
from draftwing.parallel.place import RankPlace
from draftwing.parallel.server import EngineLike, RankServer, answering_while_loading

log = logging.getLogger("draftwing.parallel.rank")  # also when this file is run as __main__

Progress = Callable[[str], None]
Factory = Callable[[str, Progress], EngineLike]
Report = Callable[[dict[str, Any]], None]

DEFAULT_FACTORY = "draftwing.parallel.rank:build_configured"
PARENT_POLL_S = 0.5
_PARENT_GRACE_S = 5.0


def build_configured(config_json: str, progress: Progress) -> EngineLike:
    """The engine of a `Config` in JSON."""
    from draftwing.config import Config
    from draftwing.engine.build import build_engine

    return build_engine(Config.model_validate_json(config_json), progress=progress)


def run_rank(
    config_json: str,
    channel: ChannelServer,
    factory: Factory,
    report: Report,
    *,
    on_server: Callable[[RankServer], None] = lambda _: None,
) -> int:
    """Build the engine and serve it; returns the exit code. Closes the channel. Raises what the factory raises.

    on_server receives the server before it runs, for `request_stop`.
    """
    try:
        report({"state": "listening", "endpoint": channel.endpoint.to_dict()})
        with answering_while_loading(channel):
            engine = factory(config_json, lambda detail: report({"state": "loading", "detail": detail}))
        server = RankServer(engine, channel)
        on_server(server)
        report({"state": "ready"})
        return server.run()
    finally:
        channel.close()


def run_team(
    config_json: str,
    channel: ChannelServer,
    place: RankPlace,
    report: Report,
    *,
    on_engine: Callable[[EngineLike], None] = lambda _: None,
    on_server: Callable[[RankServer], None] = lambda _: None,
) -> int:
    """As `run_rank`, for rank 0 of several, whose engine is the configured one; on_engine receives it."""
    from draftwing.parallel.sharded import Team

    team = Team(place, report)

    def lead(config_json: str, progress: Progress) -> EngineLike:
        engine = team.lead(config_json, progress)
        on_engine(engine)
        return engine

    code = run_rank(config_json, channel, lead, report, on_server=on_server)
    if code == 0:
        team.stop()
    return code


def follow_team(config_json: str, place: RankPlace, report: Report) -> int:
    """Any rank but the first: returns the exit code when rank 0 has stopped. Raises what loading raises, RankLost."""
    from draftwing.parallel.sharded import Team

    Team(place, report).follow(config_json, lambda detail: report({"state": "loading", "detail": detail}))
    return 0


class _Stopped(BaseException):
    """SIGTERM while the model loads: nothing to finish, so leave at once, past handlers of Exception."""


class _Signals:
    """SIGTERM and SIGINT end the rank: after the step when it serves, at once when it still loads."""

    def __init__(self) -> None:
        self._server: RankServer | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def serve(self, server: RankServer) -> None:
        self._server = server

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._server is None:
            raise _Stopped
        self._server.request_stop(f"the replica was stopped ({signal.Signals(number).name})")


def _end_with_parent(parent: int) -> None:
    """Stop when the process that started us is gone, even if a step hangs. (PR_SET_PDEATHSIG would follow the thread
    that started us, which may end long before its process does.)"""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    log.warning("the parent process %d is gone; this rank ends", parent)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PARENT_GRACE_S)
    os._exit(1)


def _reporter(fd: int | None) -> Report:
    def report(state: dict[str, Any]) -> None:
        log.info("%s", state.get("detail") or state.get("error") or state["state"])
        if fd is not None:
            with suppress(BrokenPipeError):  # nobody listens any more
                os.write(fd, (json.dumps(state) + "\n").encode())

    return report


def _factory_of(name: str) -> Factory:
    module, _, function = name.partition(":")
    return cast("Factory", getattr(importlib.import_module(module), function))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m draftwing.parallel.rank", description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--store", default="", help="host:port of rank 0's TCPStore")
    parser.add_argument("--host", default="127.0.0.1", help="where the channel listens")
    parser.add_argument("--advertise", help="the host that clients connect to, when --host is a wildcard")
    parser.add_argument("--parent", type=int, help="process id; the rank ends when this is no longer its parent")
    parser.add_argument("--report-fd", type=int, help="file descriptor for state lines")
    parser.add_argument("--factory", default=DEFAULT_FACTORY, help="module:function that builds the engine")
    args = parser.parse_args(argv)
    configure_logging()
    report = _reporter(args.report_fd)
    signals = _Signals()
    if args.parent is not None:
        threading.Thread(target=_end_with_parent, args=(args.parent,), name="parent", daemon=True).start()
    try:
        place = RankPlace(args.rank, args.world_size, args.store, args.advertise or args.host)
        place.check()
        if place.rank:
            # It waits for rank 0 where no handler of ours would run, and has nobody to tell.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            return follow_team(sys.stdin.read(), place, report)
        channel = ChannelServer(args.host, advertise=args.advertise)
        if place.world_size > 1:
            return run_team(sys.stdin.read(), channel, place, report, on_server=signals.serve)
        return run_rank(sys.stdin.read(), channel, _factory_of(args.factory), report, on_server=signals.serve)
    except _Stopped:
        return 0
    except DraftwingError as error:
        report({"state": "failed", "error": str(error), "exit_code": error.exit_code})
        return error.exit_code
    except Exception as error:
        log.exception("this rank failed")
        report({"state": "failed", "error": f"{type(error).__name__}: {error}", "exit_code": 1})
        return 1


if __name__ == "__main__":
    sys.exit(main())
