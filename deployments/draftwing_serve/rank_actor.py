"""A rank as a Ray actor: in a thread of the actor's process the engine and its channel, or what follows rank 0.

The actor's own loop stays free, so that it answers while a step runs. A step that raises ends the process, and whoever
watches the actor sees it die (rule R3).
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from draftwing.errors import DraftwingError
from draftwing.logs import configure_logging
from draftwing.parallel.channel import ChannelServer
from draftwing.parallel.endpoint import Endpoint
from draftwing.parallel.place import RankPlace
from draftwing.parallel.rank import Progress, follow_team, run_rank, run_team
from draftwing.parallel.remote_drafter import RemoteDrafter
from draftwing.parallel.server import EngineLike, RankServer
from draftwing_serve.ray_edge import node_address

if TYPE_CHECKING:
    from draftwing.engine.step import Engine

logger = logging.getLogger(__name__)
DEFAULT_FACTORY = "draftwing_serve.rank_actor:build"
_STOP_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a gateway must know of a loaded engine. context: most tokens of prompt and output together."""

    context: int
    vocab_size: int


EngineFactory = Callable[[str, Progress], tuple[EngineLike, EngineFacts]]


def build(config_json: str, progress: Progress) -> tuple[EngineLike, EngineFacts]:
    """The engine that a config names."""
    from draftwing.config import Config
    from draftwing.engine.build import build_engine
    from draftwing.parallel.remote_drafter import remote_drafter

    config = Config.model_validate_json(config_json)
    engine = build_engine(config, progress=progress, drafter=remote_drafter(config))
    return engine, _facts(engine)


def _facts(engine: Any) -> EngineFacts:
    return EngineFacts(engine.admission.context, engine.admission.vocab_size)


class RankActor:
    """Plain class; `target` makes it an actor with threads, because `states` waits.

    What happens is told as the state lines of `draftwing.parallel.rank`, with the engine's facts in `ready`.
    """

    def __init__(self, config_json: str, factory: str, place: RankPlace) -> None:
        # Ray limits OpenMP to the actor's share of CPUs, which is made up; the engine has its own setting.
        os.environ.pop("OMP_NUM_THREADS", None)
        configure_logging()
        self._factory = factory
        self._states: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._facts: EngineFacts | None = None
        self._server: RankServer | None = None
        self._config_json = config_json
        self._engine: Engine | None = None
        self._drafter: RemoteDrafter | None = None
        self._place = place
        self._ready = False
        self._thread = threading.Thread(target=self._run, args=(config_json,), name="rank", daemon=True)
        self._thread.start()

    def states(self, seen: int, wait_s: float) -> list[dict[str, Any]]:
        """The states after the first `seen`, waiting up to wait_s for one."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._states) > seen, wait_s)
            return self._states[seen:]

    def alive(self) -> bool:
        """False once the engine's thread has ended. That the engine steps, its channel tells."""
        return self._thread.is_alive()

    def connect_drafters(self, endpoints: list[dict[str, str]]) -> None:
        """Where the drafters of a config with a placement listen from now on."""
        if self._drafter is not None:
            self._drafter.connect([Endpoint.from_dict(each) for each in endpoints])

    def use_profile(self) -> str:
        """Decide with the profile that is published now, from the next step on; "" or why it is refused.

        It is read and checked beside the engine, which goes on meanwhile.
        """
        from draftwing.config import Config
        from draftwing.engine.build import policy_for

        engine, server = self._engine, self._server
        if engine is None or server is None:
            return "the engine is still loading"
        try:
            policy = policy_for(Config.model_validate_json(self._config_json), engine)
        except DraftwingError as error:
            return str(error)

        def swap() -> None:
            engine.policy = policy

        server.use_policy(swap)
        return ""

    def pause(self, reason: str) -> str:
        """Hold speculation off from the next step on, for this reason; "": let it run again. "" or why it can't be."""
        engine, server = self._engine, self._server
        if engine is None or server is None:
            return "the engine is still loading"

        def act() -> None:
            engine.paused = reason

        server.between_steps(act)
        return ""

    def stop(self) -> None:
        """End after the present step."""
        if self._server is not None:
            self._server.request_stop()
            self._thread.join(_STOP_WAIT_S)

    def _run(self, config_json: str) -> None:
        try:
            code = self._work(config_json)
        except DraftwingError as error:
            self._report({"state": "failed", "error": str(error), "exit_code": error.exit_code})
            code = error.exit_code
        except Exception as error:
            logger.exception("the rank could not start")
            self._report({"state": "failed", "error": f"{type(error).__name__}: {error}", "exit_code": 1})
            code = 1
        # One that never served stays, to say why; from one that did the others learn by its death.
        if code and self._ready:
            os._exit(code)

    def _work(self, config_json: str) -> int:
        place = replace(self._place, host=self._place.host or node_address())
        if place.rank:
            return follow_team(config_json, place, self._report)
        channel = ChannelServer(place.host)
        if place.world_size > 1:
            return run_team(config_json, channel, place, self._report, on_engine=self._learn, on_server=self._serve)
        return run_rank(config_json, channel, self._build, self._report, on_server=self._serve)

    def _learn(self, engine: EngineLike) -> None:
        self._facts = _facts(engine)
        self._find_drafter(engine)

    def _build(self, config_json: str, progress: Progress) -> EngineLike:
        module, _, function = self._factory.partition(":")
        factory = cast("EngineFactory", getattr(importlib.import_module(module), function))
        engine, self._facts = factory(config_json, progress)
        self._find_drafter(engine)
        return engine

    def _find_drafter(self, engine: EngineLike) -> None:
        from draftwing.engine.step import Engine

        self._engine = engine if isinstance(engine, Engine) else None
        drafter = engine.drafting.drafter if isinstance(engine, Engine) else None
        self._drafter = drafter if isinstance(drafter, RemoteDrafter) else None

    def _serve(self, server: RankServer) -> None:
        self._server = server

    def _report(self, state: dict[str, Any]) -> None:
        self._ready = self._ready or state["state"] == "ready"
        if state["state"] == "ready" and self._facts is not None:
            state = state | {"context": self._facts.context, "vocab_size": self._facts.vocab_size}
        logger.info("%s", state.get("detail") or state.get("error") or state["state"])
        with self._changed:
            self._states.append(state)
            self._changed.notify_all()
