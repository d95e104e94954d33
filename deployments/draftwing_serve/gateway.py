"""The gateway without its HTTP: runs a prepared request on the engines and accounts for it.

`GatewayCore` knows neither Ray nor FastAPI. `http_api` puts routes around it, `app` a Serve deployment.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from draftwing.core import Emission
from draftwing.errors import OverloadedError, RequestError
from draftwing_serve import errors
from draftwing_serve.engines import EnginePool, ReplicaDied
from draftwing_serve.errors import ApiError
from draftwing_serve.metrics import GatewayMetrics
from draftwing_serve.prepare import Job, Preparer
from draftwing_serve.resume import follow
from draftwing_serve.streams import ClientGone, merge

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """keys: accepted API keys, none: all are let in. Times in seconds."""

    keys: tuple[str, ...] = ()
    request_timeout_s: float = 600.0
    body_timeout_s: float = 30.0
    prepare_threads: int = 4
    echo_request_id: bool = True  # False where a proxy in front already adds the header


class GatewayCore:
    def __init__(
        self, preparer: Preparer, pool: EnginePool, options: GatewayOptions, metrics: GatewayMetrics | None = None
    ) -> None:
        self.preparer = preparer
        self.pool = pool
        self.options = options
        self.metrics = metrics or GatewayMetrics()
        self._threads = ThreadPoolExecutor(options.prepare_threads, thread_name_prefix="prepare")

    async def prepared(self, read: Callable[[bytes], T], body: bytes) -> T:
        """`read(body)` off the event loop; ApiError when it is refused."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, read, body)
        except RequestError as error:
            raise errors.from_request_error(error) from None

    async def run(self, job: Job) -> AsyncGenerator[tuple[int, Emission], None]:
        """Emissions of all choices, each with its choice's index, until all have finished. Failures are ApiErrors.

        Closing the generator cancels whatever still runs on the engines.
        """
        watch = self.metrics.watch(job)
        deadline = asyncio.get_running_loop().time() + self.options.request_timeout_s
        unique = uuid.uuid4().hex
        sources = [
            follow(state, f"{unique}.{index}", self.pool, deadline) for index, state in enumerate(job.choices)
        ]
        try:
            async with aclosing(merge(sources)) as emissions:
                async for index, emission in emissions:
                    if emission.finish_reason == "error":
                        logger.error("request %s failed in the engine: %s", unique, emission.error)
                        raise errors.request_failed()
                    watch.emission(index, emission)
                    yield index, emission
            watch.done("completed")
        except (ApiError, RequestError, OverloadedError, ReplicaDied, TimeoutError) as error:
            failure = self._failure(error, started=watch.started)
            watch.done(failure.code)
            raise failure from None
        except (GeneratorExit, asyncio.CancelledError, ClientGone):
            watch.done("cancelled")
            raise

    def _failure(self, error: Exception, *, started: bool) -> ApiError:
        match error:
            case ApiError():
                return error
            case RequestError():
                return errors.from_request_error(error)
            case OverloadedError():
                return errors.from_overload(error)
            case ReplicaDied():
                return errors.replica_lost(started=started)
            case _:
                return errors.deadline_exceeded(self.options.request_timeout_s)

    async def healthy(self) -> bool:
        """At least one engine is connected and answers."""
        if not self.pool.engines:
            await self.pool.refresh()
        return any([stats is not None for stats in await self.engine_stats()])

    async def engine_stats(self) -> list[dict[str, Any] | None]:
        return await self.pool.stats()

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self.pool.close()


def now() -> int:
    return int(time.time())
