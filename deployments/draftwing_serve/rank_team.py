"""The ranks of one target replica: one actor in each bundle of its placement group, started, followed and watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from draftwing.errors import ConfigError, DraftwingError, SetupError
from draftwing.parallel.endpoint import Endpoint
from draftwing.parallel.place import RankPlace
from draftwing_serve.rank_actor import RankActor
from draftwing_serve.ray_edge import bundles_by_node, make_actor, node_address

RANK_CPUS = 0.9  # with the replica's share: one CPU a bundle. Ray's CPUs are tickets, the engine has its own threads.
_STATE_WAIT_S = 1.0
_ERRORS: dict[int, type[DraftwingError]] = {2: ConfigError, 3: SetupError}


class RankTeam:
    """Rank 0, which serves the channel, and those that follow it. tell: gets lines of progress."""

    def __init__(self, config_json: str, factory: str, ranks: int, gpus: int, tell: Callable[[str], None]) -> None:
        self._arguments = (config_json, factory)
        self._size = ranks
        self._gpus = gpus
        self._tell = tell
        self._endpoint: Endpoint | None = None
        self._actors: list[Any] = []

    async def start(self) -> tuple[Endpoint, dict[str, Any]]:
        """Return when every rank is ready: where rank 0 listens, and its `ready` state. Raises a rank's own error.

        Rank 0 is in the replica's own bundle, and neighbours in rank are neighbours on a node.
        """
        bundles = bundles_by_node(self._size)
        self._add(RankPlace(0, self._size, host=node_address()), bundles[0])
        lead = self._states(self._actors[0])
        if self._size > 1:
            store = await self._store(lead)
            for rank in range(1, self._size):
                self._add(RankPlace(rank, self._size, store, host=""), bundles[rank])
        waits = [asyncio.ensure_future(self._ready(lead))]
        waits += [asyncio.ensure_future(self._ready(self._states(actor))) for actor in self._actors[1:]]
        try:
            ready, *_ = await asyncio.gather(*waits)
        finally:
            for wait in waits:
                wait.cancel()
        assert self._endpoint is not None
        return self._endpoint, ready

    async def alive(self) -> bool:
        """Every rank's process and engine live. A dead actor's own error goes out as it is."""
        return all(await asyncio.gather(*(actor.alive.remote() for actor in self._actors)))

    async def connect_drafters(self, endpoints: list[dict[str, str]]) -> None:
        """Where the drafters that rank 0 asks listen from now on."""
        await self._actors[0].connect_drafters.remote(endpoints)

    async def use_profile(self) -> str:
        """See `RankActor.use_profile`; rank 0 alone decides."""
        refused: str = await self._actors[0].use_profile.remote()
        return refused

    async def pause(self, reason: str) -> str:
        """See `RankActor.pause`; rank 0 alone drafts."""
        refused: str = await self._actors[0].pause.remote(reason)
        return refused

    async def stop(self) -> None:
        """End after the present step; rank 0 tells the others."""
        await self._actors[0].stop.remote()

    def _add(self, place: RankPlace, bundle: int | None) -> None:
        actor = make_actor(RankActor, *self._arguments, place, bundle=bundle, cpus=RANK_CPUS, gpus=self._gpus)
        self._actors.append(actor)

    async def _store(self, lead: AsyncGenerator[dict[str, Any], None]) -> str:
        async for state in lead:
            if state["state"] == "store":
                return str(state["address"])
        raise DraftwingError("rank 0 ended before the others could join it")

    async def _ready(self, states: AsyncGenerator[dict[str, Any], None]) -> dict[str, Any]:
        async for state in states:
            if state["state"] == "ready":
                return state
        raise DraftwingError("a rank ended before it was ready")

    async def _states(self, actor: Any) -> AsyncGenerator[dict[str, Any], None]:
        """A rank's states as they come; raises the error of the one that failed."""
        seen = 0
        while True:
            for state in await actor.states.remote(seen, _STATE_WAIT_S):
                seen += 1
                match state["state"]:
                    case "listening":
                        self._endpoint = Endpoint.from_dict(state["endpoint"])
                    case "loading":
                        self._tell(state["detail"])
                    case "failed":
                        raise _ERRORS.get(state["exit_code"], DraftwingError)(state["error"])
                yield state
