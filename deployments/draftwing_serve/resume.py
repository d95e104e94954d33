"""One choice of one request, kept by the gateway so that it outlives the replica that serves it (rule R3).

Everything a replica needs to go on is here: output is a function of (prompt, parameters, seed, choice) alone, and the
engine rebuilds the rest by replaying the tokens committed so far.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from draftwing.core import Emission, Request, SamplingParams
from draftwing.parallel.client import ReplicaDied
from draftwing_serve.engines import EnginePool

if TYPE_CHECKING:
    from draftwing_serve.metrics import GatewayMetrics

logger = logging.getLogger(__name__)
MOST_MOVES = 3  # a request that ends every replica it meets must not end them all


@dataclass(slots=True)
class ResumeState:
    """params carry the seed. generated_ids: committed, whether or not their text was sent. emitted_chars: text sent.

    salt: of the caches it may share.
    """

    prompt_ids: list[int]
    params: SamplingParams
    choice: int
    model_digest: str
    salt: str = ""
    generated_ids: list[int] = field(default_factory=list)
    emitted_chars: int = 0

    def request(self, request_id: str) -> Request:
        return Request(
            id=request_id,
            prompt_ids=self.prompt_ids,
            params=self.params,
            choice=self.choice,
            generated_ids=list(self.generated_ids),
            emitted_chars=self.emitted_chars,
            salt=self.salt,
        )

    def record(self, emission: Emission) -> None:
        self.generated_ids.extend(emission.token_ids)
        self.emitted_chars += len(emission.text)


async def follow(
    state: ResumeState, request_id: str, pool: EnginePool, deadline: float, metrics: GatewayMetrics
) -> AsyncGenerator[Emission, None]:
    """A choice's emissions to its end, through as many replicas as it takes.

    deadline: loop time. Raises TimeoutError after it, RequestError and OverloadedError from the engine, ReplicaDied
    when no replica takes over in the pool's time, or when too many were lost under this request.
    """
    moves = 0
    while True:
        engine = await pool.acquire(state.model_digest, deadline, fresh=moves == 0)
        try:
            async with aclosing(engine.client.stream(state.request(f"{request_id}.{moves}"))) as emissions:
                while True:
                    async with asyncio.timeout_at(deadline):
                        emission = await anext(emissions)
                    if emission.finish_reason == "cancelled":
                        raise ReplicaDied("the replica is stopping", cause="shutdown")
                    state.record(emission)
                    yield emission
                    if emission.finish_reason is not None:
                        return
        except ReplicaDied as error:
            if pool.lost(engine):
                metrics.replicas_lost.inc()
            moves += 1
            # A failed step may be this request's doing: one more try shows.
            if moves > (1 if error.cause == "step_failed" else MOST_MOVES):
                raise
            logger.warning(
                "choice %s goes on elsewhere after %d tokens: %s", request_id, len(state.generated_ids), error
            )
            metrics.resumed.inc()
        finally:
            pool.release(engine)
