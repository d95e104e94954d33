"""A tokenizer of bytes and an engine without a model, with the faults that tests ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI

from draftwing.core import AcceptanceSummary, Emission, EngineCounters, Request, TokenLogprob
from draftwing.errors import OverloadedError
from draftwing.limits import RequestLimits
from draftwing.parallel.client import DeathCause, ReplicaDied
from draftwing.parallel.endpoint import Endpoint
from draftwing.parallel.messages import RankStats
from draftwing_serve.engines import Advert, EnginePool
from draftwing_serve.gateway import GatewayCore, GatewayOptions
from draftwing_serve.http_api import make_app
from draftwing_serve.prepare import ModelFacts, Preparer

OUTPUT = "One two three four five six seven eight nine ten. " * 40
CONTEXT = 256


class ByteTokenizer:
    """Token ids are bytes; 256 begins a text."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [256] * special + list(text.encode())

    def decode(self, ids: list[int]) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def token_text(self, token: int) -> str:
        return self.decode([token])

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        text = "".join(f"<{message['role']}>{message['content']}\n" for message in messages)
        return self.encode(text + "<assistant>")


@dataclass
class FakeEngine:
    """Every request's output is OUTPUT, `run` tokens a step. die_after: steps until it dies, once for all streams.

    cached: prompt tokens that a first choice finds in the prefix cache; later ones find one more each.
    """

    run: int = 3
    step_s: float = 0.0
    refuse: Exception | None = None
    fail: str | None = None
    die_after: int | None = None
    cause: DeathCause = "disconnected"
    requests: list[Request] = field(default_factory=list)
    live: int = 0
    cancelled: int = 0
    closed: bool = False
    gate: asyncio.Event | None = None
    cached: int = 0

    async def stream(self, request: Request) -> AsyncGenerator[Emission, None]:
        if self.refuse is not None:
            raise self.refuse
        self.requests.append(request)
        self.live += 1
        finished = False
        try:
            done, steps, limit = len(request.generated_ids), 0, request.params.max_tokens
            text = OUTPUT.encode()
            while not finished:
                if self.gate is not None:
                    await self.gate.wait()
                await asyncio.sleep(self.step_s)
                if self.die_after is not None and steps >= self.die_after:
                    raise ReplicaDied("killed by the test", cause=self.cause)
                if self.fail is not None:
                    finished = True
                    yield Emission(request.id, [], finish_reason="error", error=self.fail)
                    return
                ids = list(text[done : min(done + self.run, limit)])
                done, steps = done + len(ids), steps + 1
                finished = done >= limit
                yield self._emission(request, ids, finished, steps)
        finally:
            self.live -= 1
            self.cancelled += not finished

    def _emission(self, request: Request, ids: list[int], finished: bool, steps: int) -> Emission:
        emission = Emission(request.id, ids, bytes(ids).decode(), cached_tokens=self.cached + request.choice)
        if request.params.logprobs is not None:
            others = [(65 + i, -2.0 - i) for i in range(request.params.logprobs)]
            emission.logprobs = [TokenLogprob(token, -0.5, others) for token in ids]
        if finished:
            emission.finish_reason = "length"
            emission.summary = AcceptanceSummary([3] * steps, [2, *[1] * (steps - 1)], max_depth=4, verifies=steps + 1)
        return emission

    async def stats(self, timeout_s: float = 1.0) -> RankStats:
        counters = EngineCounters(steps=7, drafts=5, draft_tokens=20, accepted_tokens=9, accepted_per_depth=[5, 4])
        counters.prefix_queries, counters.prefix_hits = 12, 8
        return RankStats(pid=1, state="ready", running=self.live, counters=counters)

    async def close(self) -> None:
        self.closed = True


def advert(number: int = 0, digest: str = "digest") -> Advert:
    return Advert(Endpoint(f"tcp://127.0.0.1:{number + 1}", "k" * 40, "k" * 40, "k" * 40), digest)


class Cluster:
    """Engines that a pool may find, one a port."""

    def __init__(self, engines: Sequence[FakeEngine]) -> None:
        self.engines = list(engines)
        self.up = len(self.engines)

    async def discover(self) -> list[Advert]:
        return [advert(number) for number, engine in enumerate(self.engines[: self.up]) if not engine.closed]

    async def connect(self, endpoint: Endpoint) -> FakeEngine:
        return self.engines[int(endpoint.address.rsplit(":", 1)[1]) - 1]


def make_core(
    *engines: FakeEngine,
    patience_s: float = 1.0,
    limits: RequestLimits | None = None,
    tokenizer: bool = True,
    **options: Any,
) -> GatewayCore:
    cluster = Cluster(engines or [FakeEngine()])
    facts = ModelFacts("tiny", ("alias",), CONTEXT, vocab_size=300, digest="digest", created=1)
    preparer = Preparer(facts, ByteTokenizer() if tokenizer else None, limits or RequestLimits())
    pool = EnginePool(cluster.discover, cluster.connect, patience_s=patience_s, fresh_s=0.05)
    return GatewayCore(preparer, pool, GatewayOptions(**options))


def make_client(core: GatewayCore, app: FastAPI | None = None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app or make_app(core))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def overloaded() -> OverloadedError:
    return OverloadedError("queue full", retry_after_s=3)
