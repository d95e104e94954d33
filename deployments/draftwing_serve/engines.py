"""The engines a gateway may send requests to: found, connected, chosen by load, and given up when they die."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from draftwing.core import Emission, Request
from draftwing.errors import DraftwingError

logger = logging.getLogger(__name__)
POLL_S = 0.25


class ReplicaDied(DraftwingError):
    """The rank behind a connection is gone or no longer answers."""


class EngineClient(Protocol):
    """The channel's client side, as far as the gateway uses it."""

    def stream(self, request: Request) -> AsyncGenerator[Emission, None]:
        """RequestError, OverloadedError, ReplicaDied. Closing it early cancels the request."""
        ...

    async def stats(self) -> Mapping[str, float]: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Advert:
    """Where a target replica's rank listens, and the digest of the model that it serves."""

    endpoint: str
    digest: str


@dataclass(slots=True)
class Engine:
    advert: Advert
    client: EngineClient
    in_flight: int = 0


class EnginePool:
    """discover: the adverts of the replicas that are up now. patience_s: how long a request waits for one."""

    def __init__(
        self,
        discover: Callable[[], Awaitable[Sequence[Advert]]],
        connect: Callable[[Advert], Awaitable[EngineClient]],
        *,
        patience_s: float = 60.0,
    ) -> None:
        self._discover = discover
        self._connect = connect
        self._patience_s = patience_s
        self._engines: list[Engine] = []
        self._search = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def engines(self) -> Sequence[Engine]:
        return tuple(self._engines)

    async def acquire(self, digest: str, deadline: float) -> Engine:
        """The least loaded engine that serves this model; give it back by `release`.

        deadline: loop time. TimeoutError after it, ReplicaDied when patience ends first.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._patience_s
        while True:
            fitting = [engine for engine in self._engines if engine.advert.digest == digest]
            if fitting:
                engine = min(fitting, key=lambda candidate: candidate.in_flight)
                engine.in_flight += 1
                return engine
            if loop.time() >= deadline:
                raise TimeoutError
            if loop.time() >= give_up:
                raise ReplicaDied(f"no replica of this model came up within {self._patience_s:g} seconds")
            if not await self.refresh():
                await asyncio.sleep(POLL_S)

    def release(self, engine: Engine) -> None:
        engine.in_flight -= 1

    def lost(self, engine: Engine) -> None:
        """Send nothing more there. Whoever still streams from it learns from its own client."""
        if engine in self._engines:
            self._engines.remove(engine)
            task = asyncio.get_running_loop().create_task(engine.client.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def refresh(self) -> bool:
        """Look for replicas; True when a new one was connected."""
        async with self._search:
            found = False
            known = {engine.advert for engine in self._engines}
            for advert in await self._discover():
                if advert in known:
                    continue
                try:
                    client = await self._connect(advert)
                except (ReplicaDied, OSError, TimeoutError) as error:
                    logger.warning("no connection to %s: %s", advert.endpoint, error)
                    continue
                self._engines.append(Engine(advert, client))
                found = True
            return found

    async def close(self) -> None:
        for engine in self.engines:
            self.lost(engine)
        await asyncio.gather(*self._closing, return_exceptions=True)
