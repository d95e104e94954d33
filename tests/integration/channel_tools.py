"""A rank with a fake engine, in a thread of the test or in a process, for the tests of the channel."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import zmq

from draftwing.core import Emission, Request, SamplingParams
from draftwing.parallel import wire
from draftwing.parallel.channel import ChannelServer
from draftwing.parallel.client import EngineClient
from draftwing.parallel.endpoint import Endpoint
from draftwing.parallel.messages import Message
from draftwing.parallel.process import RankProcess
from draftwing.parallel.server import RankServer
from draftwing.testing.fake_engine import FakeEngine, FakeScript

M = TypeVar("M", bound=Message)
FACTORY = "draftwing.testing.fake_engine:build_fake_engine"


@dataclass
class Serving:
    engine: FakeEngine
    server: RankServer
    channel: ChannelServer

    @property
    def endpoint(self) -> Endpoint:
        return self.channel.endpoint


@contextmanager
def serving(send_queue: int = 1000, **script: Any) -> Iterator[Serving]:
    channel = ChannelServer(send_queue=send_queue)
    engine = FakeEngine(FakeScript(**script))
    server = RankServer(engine, channel)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Serving(engine, server, channel)
    finally:
        server.request_stop()
        thread.join(10)
        channel.close()
    assert not thread.is_alive()


@asynccontextmanager
async def client_of(endpoint: Endpoint) -> AsyncIterator[EngineClient]:
    client = await EngineClient.connect(endpoint, timeout_s=10)
    try:
        yield client
    finally:
        await client.close()


def fake_rank(**script: Any) -> RankProcess:
    return RankProcess(json.dumps(script), factory=FACTORY)


def echo(request_id: str = "r", prompt: str = "abc", max_tokens: int = 4) -> Request:
    return Request(request_id, [ord(c) for c in prompt], SamplingParams(max_tokens=max_tokens))


def echoed(prompt: str, count: int) -> str:
    return (prompt * count)[:count]


def drive(main: Callable[[], Coroutine[Any, Any, None]], within_s: float = 30) -> None:
    """Run a test's coroutine; a stream that never ends is a failure, not a hang."""

    async def bounded() -> None:
        async with asyncio.timeout(within_s):
            await main()

    asyncio.run(bounded())


async def collect(client: EngineClient, request: Request) -> list[Emission]:
    return [emission async for emission in client.stream(request)]


async def text_from(client: EngineClient, request: Request) -> str:
    return "".join(e.text for e in await collect(client, request))


async def until(condition: Callable[[], bool], within_s: float) -> float:
    """Seconds until the condition held; AssertionError when it didn't in time."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, "it did not happen in time"
        await asyncio.sleep(0.005)
    return time.monotonic() - start


@contextmanager
def raw_dealer(endpoint: Endpoint, receive_queue: int = 1000) -> Iterator[zmq.Socket[bytes]]:
    """A socket with the right keys that says whatever the test wants."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.rcvtimeo = 3000
        socket.rcvhwm = receive_queue
        socket.curve_serverkey = endpoint.server_public.encode()
        socket.curve_publickey = endpoint.client_public.encode()
        socket.curve_secretkey = endpoint.client_secret.encode()
        socket.connect(endpoint.address)
        yield socket


def receive(dealer: zmq.Socket[bytes], kind: type[M], within_s: float = 10) -> M:
    """The next message of a kind; others are skipped."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if isinstance(message := wire.decode(dealer.recv()), kind):
            return message
    raise AssertionError(f"no {kind.__name__} in {within_s} s")
