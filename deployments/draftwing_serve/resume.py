"""One choice of one request, kept by the gateway so that it outlives the replica that serves it (rule R3).

Everything a replica needs to go on is here: output is a function of (prompt, parameters, seed, choice) alone, and the
engine rebuilds the rest by replaying the tokens committed so far.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field

import asyncio
import logging

from draftwing.core import Emission, Request, SamplingParams
from draftwing_serve.engines import EnginePool, ReplicaDied

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ResumeState:
    """params carry the seed. generated_ids: committed, whether or not their text was sent. emitted_chars: text sent."""

    prompt_ids: list[int]
    params: SamplingParams
    choice: int
    model_digest: str
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
        )

    def record(self, emission: Emission) -> None:
        self.generated_ids.extend(emission.token_ids)
        self.emitted_chars += len(emission.text)


async def follow(
    state: ResumeState, request_id: str, pool: EnginePool, deadline: float
) -> AsyncIterator[Emission]:
    """A choice's emissions to its end, through as many replicas as it takes.

    deadline: loop time. Raises TimeoutError after it, RequestError and OverloadedError from the engine, ReplicaDied
    when no replica takes over in the pool's time.
    """
    attempt = 0
    while True:
        engine = await pool.acquire(state.model_digest, deadline)
        try:
            async with aclosing(engine.stream(state.request(f"{request_id}.{attempt}"))) as emissions:
                while True:
                    async with asyncio.timeout_at(deadline):
                        emission = await anext(emissions, None)
                    if emission is None:
                        raise ReplicaDied("the stream of emissions ended early")
                    state.record(emission)
                    yield emission
                    if emission.finish_reason is not None:
                        return
        except ReplicaDied as error:
            attempt += 1
            pool.lost(engine)
            logger.warning("request %s: replica lost (%s), resuming after %d tokens", request_id, error,
                           len(state.generated_ids))
        finally:
            pool.release(engine)
