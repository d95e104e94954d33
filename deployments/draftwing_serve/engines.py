"""The engines a gateway may send requests to: found, connected, chosen by load, and given up when they die."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from draftwing.core import Emission, Request
from draftwing.errors import SetupError
from draftwing.parallel.client import ReplicaDied
from draftwing.parallel.endpoint import Endpoint
from draftwing.parallel.messages import RankStats

logger = logging.getLogger(__name__)
POLL_S = 0.25
STATS_TIMEOUT_S = 2.0


class Client(Protocol):
    """`draftwing.parallel.client.EngineClient`, as far as the gateway uses it."""

    def stream(self, request: Request) -> AsyncGenerator[Emission, None]: ...
    async def stats(self, timeout_s: float = ...) -> RankStats: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Advert:
    """Where a target replica's rank listens, and the digest of the model that it serves."""

    endpoint: Endpoint
    digest: str


@dataclass(slots=True, eq=False)
class Engine:
    advert: Advert
    client: Client
    in_flight: int = 0


class EnginePool:
    """discover: the adverts of the replicas that are up now.

    patience_s: how long a request under way waits for another replica. A new one waits fresh_s at most: its client can
    come back later, and what waits here is bounded by no queue.
    """

    def __init__(
        self,
        discover: Callable[[], Awaitable[Sequence[Advert]]],
        connect: Callable[[Endpoint], Awaitable[Client]],
        *,
        patience_s: float = 60.0,
        fresh_s: float = 1.0,
    ) -> None:
        self._discover = discover
        self._connect = connect
        self._patience_s = patience_s
        self._fresh_s = fresh_s
        self._engines: list[Engine] = []
        self._search = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def engines(self) -> Sequence[Engine]:
        return tuple(self._engines)

    async def acquire(self, digest: str, deadline: float, *, fresh: bool) -> Engine:
        """The least loaded engine that serves this model; give it back by `release`.

        deadline: loop time. TimeoutError after it, ReplicaDied when patience ends first.
        """
        loop = asyncio.get_running_loop()
        patience = self._fresh_s if fresh else self._patience_s
        give_up = loop.time() + patience
        while True:
            fitting = [engine for engine in self._engines if engine.advert.digest == digest]
            if fitting:
                engine = min(fitting, key=lambda candidate: candidate.in_flight)
                engine.in_flight += 1
                return engine
            if loop.time() >= deadline:
                raise TimeoutError
            if loop.time() >= give_up:
                message = f"no replica of this model came up within {patience:g} seconds"
                raise ReplicaDied(message, cause="disconnected")
            if not await self.refresh():
                await asyncio.sleep(POLL_S)

    def release(self, engine: Engine) -> None:
        engine.in_flight -= 1

    def lost(self, engine: Engine) -> bool:
        """Send nothing more there; True the first time. Whoever still streams from it learns from its own client."""
        if engine not in self._engines:
            return False
        self._engines.remove(engine)
        task = asyncio.get_running_loop().create_task(engine.client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return True

    async def refresh(self) -> bool:
        """Look for replicas; True when a new one was connected."""
        async with self._search:
            found = False
            known = {engine.advert.endpoint for engine in self._engines}
            for advert in await self._discover():
                if advert.endpoint in known:
                    continue
                try:
                    client = await self._connect(advert.endpoint)
                except SetupError as error:
                    logger.warning("%s", error)
                    continue
                self._engines.append(Engine(advert, client))
                found = True
            return found

    async def stats(self) -> dict[str, RankStats]:
        """By address, of the engines that answer; those found dead are given up."""
        engines = self.engines
        answers = await asyncio.gather(*(self._stats_of(engine) for engine in engines))
        pairs = zip(engines, answers, strict=True)
        return {engine.advert.endpoint.address: stats for engine, stats in pairs if stats is not None}

    async def _stats_of(self, engine: Engine) -> RankStats | None:
        try:
            return await engine.client.stats(STATS_TIMEOUT_S)
        except TimeoutError:
            return None
        except ReplicaDied:
            self.lost(engine)
            return None

    async def close(self) -> None:
        for engine in self.engines:
            self.lost(engine)
        await asyncio.gather(*self._closing, return_exceptions=True)
