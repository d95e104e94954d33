"""The gateway without its HTTP: runs prepared requests on the engines and accounts for them.

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
from typing import TypeVar

from draftwing.core import Emission
from draftwing.errors import DraftwingError, OverloadedError, RequestError
from draftwing.parallel.client import ReplicaDied
from draftwing_serve import errors
from draftwing_serve.engines import EnginePool
from draftwing_serve.errors import ApiError
from draftwing_serve.metrics import GatewayMetrics
from draftwing_serve.prepare import Job, Preparer
from draftwing_serve.resume import follow
from draftwing_serve.steering import Steer, nobody_to_steer
from draftwing_serve.streams import merge

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """keys: accepted API keys, none: all are let in. profile: where `policy.profile` points. Times in seconds."""

    keys: tuple[str, ...] = ()
    profile: str | None = None
    request_timeout_s: float = 600.0
    body_timeout_s: float = 30.0
    prepare_threads: int = 4
    echo_request_id: bool = True  # False where a proxy in front already adds the header


class GatewayCore:
    """steer: passes on what an operator asks of all replicas; gives what each answered."""

    def __init__(
        self, preparer: Preparer, pool: EnginePool, options: GatewayOptions, steer: Steer = nobody_to_steer
    ) -> None:
        self.preparer = preparer
        self.pool = pool
        self.options = options
        self.steer = steer
        self.metrics = GatewayMetrics()
        self._threads = ThreadPoolExecutor(options.prepare_threads, thread_name_prefix="prepare")

    async def prepared(self, read: Callable[[bytes], T], body: bytes) -> T:
        """`read(body)` off the event loop; ApiError when it is refused."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, read, body)
        except RequestError as error:
            raise errors.from_request_error(error) from None

    def start(self, job: Job, request_id: str) -> Run:
        return Run(self, job, request_id)

    async def healthy(self) -> bool:
        """At least one engine is connected and answers from its step loop."""
        if not self.pool.engines:
            await self.pool.refresh()
        return bool(await self.pool.stats())

    async def refresh_engine_metrics(self) -> None:
        self.metrics.engines.update(await self.pool.stats())

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self.pool.close()


class Run:
    """One request on its way through the engines."""

    def __init__(self, core: GatewayCore, job: Job, request_id: str) -> None:
        self._core = core
        self._job = job
        self._about = {"request_id": request_id}
        self._watch = core.metrics.watch(job)
        self.created = int(time.time())

    def timings(self) -> dict[str, float]:
        return self._watch.timings()

    async def emissions(self) -> AsyncGenerator[tuple[int, Emission], None]:
        """Emissions of all choices, each with its choice's index, until all have finished. Failures are ApiErrors.

        Closing the generator cancels whatever still runs on the engines.
        """
        core = self._core
        deadline = asyncio.get_running_loop().time() + core.options.request_timeout_s
        # Not the client's id: two clients may send the same one.
        unique = uuid.uuid4().hex
        sources = [
            follow(state, f"{unique}.{index}", core.pool, deadline, core.metrics)
            for index, state in enumerate(self._job.choices)
        ]
        outcome = "cancelled"
        try:
            async with aclosing(merge(sources)) as emissions:
                async for index, emission in emissions:
                    if emission.finish_reason == "error":
                        raise DraftwingError(emission.error or "the engine gave no reason")
                    self._watch.emission(index, emission)
                    yield index, emission
            outcome = "completed"
        except Exception as error:  # noqa: BLE001 - each becomes an answer, and unexpected ones a line in the log
            failure = self._failure(error)
            outcome = failure.code
            raise failure from None
        finally:
            self._watch.done(outcome)

    def _failure(self, error: Exception) -> ApiError:
        match error:
            case RequestError():
                return errors.from_request_error(error)
            case OverloadedError():
                return errors.from_overload(error)
            case ReplicaDied():
                logger.error("no replica finished the request: %s", error, extra=self._about)
                return errors.replica_lost(started=self._watch.started)
            case TimeoutError():
                return errors.deadline_exceeded(self._core.options.request_timeout_s)
            case DraftwingError():
                logger.error("the engine failed the request: %s", error, extra=self._about)
                return errors.request_failed()
            case _:
                # A fault of ours: it costs this request, and an open stream still ends with an error event.
                logger.error("the request failed", exc_info=error, extra=self._about)
                return errors.internal()
