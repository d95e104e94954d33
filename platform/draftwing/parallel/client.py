"""The clients' side of the channel: many request streams over one connection to one rank.

A client lives as long as its connection. When that ends (the rank died, stopped, or dropped us) every stream raises
ReplicaDied and the client stays dead; connect anew to the replica that takes its place. Belongs to one event loop. The
socket is read from the loop's own readiness callback: no task, no thread, one wake-up a message.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Literal

import zmq
from zmq.utils.monitor import parse_monitor_message

from draftwing.core import Emission, Request
from draftwing.errors import DraftwingError, OverloadedError, RequestError, SetupError
from draftwing.parallel import wire
from draftwing.parallel.channel import client_socket
from draftwing.parallel.endpoint import Endpoint
from draftwing.parallel.messages import (
    Beat,
    Cancel,
    Drain,
    Events,
    Lost,
    LostCause,
    Message,
    Ping,
    Pong,
    RankStats,
    Refused,
    Shutdown,
    Submit,
)

DeathCause = LostCause | Literal["disconnected", "protocol", "closed"]

_SEND_QUEUE = 10_000
_READ_AT_ONCE = 256  # then the loop's other work gets a turn
_LINGER_MS = 200  # for the last cancels
_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_WATCHED = zmq.EVENT_DISCONNECTED | _HANDSHAKE_FAILED


class ReplicaDied(DraftwingError):
    """The rank behind a stream is gone, or its connection is. The request may be resumed on another replica.

    cause step_failed: a forward step raised; the request itself may be why, so don't resume it without bound.
    """

    def __init__(self, message: str, *, cause: DeathCause) -> None:
        super().__init__(message)
        self.cause: DeathCause = cause


class EngineClient:
    """One connection to one rank. Make it with `connect`, end it with `close`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = endpoint.address
        self._socket = client_socket(endpoint, _SEND_QUEUE)
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(_WATCHED)
        self._streams: dict[str, asyncio.Queue[Emission | DraftwingError]] = {}
        self._pongs: dict[int, asyncio.Future[RankStats]] = {}
        self._numbers = itertools.count()
        self._connected = False
        self._reading = False
        self._died: asyncio.Future[ReplicaDied] = self._loop.create_future()
        self._loop.add_reader(self._socket.FD, self._read)
        self._loop.add_reader(self._monitor.FD, self._watch)
        self._socket.connect(endpoint.address)
        self._loop.call_soon(self._watch)

    @staticmethod
    async def connect(endpoint: Endpoint, timeout_s: float = 10.0) -> EngineClient:
        """A client whose rank has answered (it may still be loading its model: see `stats`).

        Raises SetupError when nothing answers in time, the keys are wrong, or the protocols differ.
        """
        client = EngineClient(endpoint)
        try:
            await client.stats(timeout_s)
        except TimeoutError as error:
            await client.close()
            raise SetupError(f"no rank answers at {endpoint.address} (waited {timeout_s:g} s)") from error
        except ReplicaDied as error:
            await client.close()
            raise SetupError(f"can't use the rank at {endpoint.address}: {error}") from error
        except BaseException:
            await client.close()
            raise
        return client

    async def stream(self, request: Request) -> AsyncGenerator[Emission, None]:
        """The request's emissions, one a step, until the one with a finish_reason.

        Ending the iteration early, or cancelling the task, cancels the request on the rank. Raises RequestError,
        OverloadedError (both before the first emission), ReplicaDied. Emissions carry the request's own id.
        """
        self._check_alive()
        # A number of our own: a late event of a cancelled request can't reach a new one that reuses its id.
        wire_id = f"{request.id}#{next(self._numbers)}"
        queue: asyncio.Queue[Emission | DraftwingError] = asyncio.Queue()
        if not self._send(Submit(replace(request, id=wire_id))):
            raise OverloadedError(f"the rank at {self._address} is not reading; its channel is full")
        self._streams[wire_id] = queue
        try:
            while True:
                item = await queue.get()
                if isinstance(item, DraftwingError):
                    raise item
                item.request_id = request.id
                yield item
                if item.finish_reason is not None:
                    return
        finally:
            if self._streams.pop(wire_id, None) is not None and not self._send(Cancel(wire_id)):
                self._die("disconnected", "its channel is full, so a request could not be cancelled")

    async def stats(self, timeout_s: float = 5.0) -> RankStats:
        """How the rank is doing, asked from its engine thread: an answer means that steps go on.

        Raises TimeoutError when it doesn't answer in time (a long or stuck step), ReplicaDied.
        """
        self._check_alive()
        nonce = next(self._numbers)
        answer: asyncio.Future[RankStats] = self._loop.create_future()
        self._pongs[nonce] = answer
        try:
            self._send(Ping(nonce))
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            self._pongs.pop(nonce, None)

    async def drain(self) -> None:
        """Ask the rank to refuse new requests and finish those it has."""
        self._check_alive()
        self._send(Drain())

    async def shutdown(self) -> None:
        """Ask the rank to stop now; `wait_dead` returns when it has."""
        self._check_alive()
        self._send(Shutdown())

    @property
    def dead(self) -> ReplicaDied | None:
        """Why this client is of no use any more, or None."""
        return self._died.result() if self._died.done() else None

    async def wait_dead(self) -> ReplicaDied:
        """Return when the connection has ended, with the reason."""
        return await asyncio.shield(self._died)

    async def close(self) -> None:
        """End the connection; the rank cancels what this client still had there. Open streams raise ReplicaDied."""
        self._die("closed", "its client was closed")

    def _check_alive(self) -> None:
        if (dead := self.dead) is not None:
            raise ReplicaDied(str(dead), cause=dead.cause)

    def _send(self, message: Message) -> bool:
        """False when the message could not be queued. Raises WireError for a message that can't be sent at all."""
        if self._died.done():
            return True  # nobody is there to hear it, and everyone here has been told
        frame = wire.encode(message)
        try:
            self._socket.send(frame, zmq.DONTWAIT)
        except zmq.Again:
            return False
        self._read_soon()  # a send may swallow the readiness edge of the socket's descriptor
        return True

    def _read_soon(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Take in what has arrived. The descriptor signals edges, so read until there is nothing."""
        self._reading = False
        for _ in range(_READ_AT_ONCE):
            if self._died.done():
                return
            try:
                frame = self._socket.recv(zmq.DONTWAIT)
            except zmq.Again:
                return
            self._connected = True
            try:
                self._take(wire.decode(frame))
            except wire.WireError as error:
                self._die("protocol", str(error))
        self._read_soon()

    def _take(self, message: Message) -> None:
        match message:
            case Events():
                for emission in message.emissions:
                    # No stream: it was cancelled while this was on its way.
                    if (queue := self._streams.get(emission.request_id)) is not None:
                        if emission.finish_reason is not None:
                            del self._streams[emission.request_id]
                        queue.put_nowait(emission)
            case Pong():
                if (answer := self._pongs.get(message.nonce)) is not None and not answer.done():
                    answer.set_result(message.stats)
            case Refused():
                if (queue := self._streams.pop(message.request_id, None)) is not None:
                    queue.put_nowait(_error_of(message))
            case Lost():
                self._die(message.cause, message.reason)
            case Beat():
                pass
            case _:
                self._die("protocol", f"it sent a {type(message).__name__}, which only clients send")

    def _watch(self) -> None:
        """Connection events, from libzmq's own thread."""
        while not self._died.done():
            try:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.DONTWAIT))["event"]
            except zmq.Again:
                return
            if event & _HANDSHAKE_FAILED:
                self._die("protocol", "it refused the keys, or is no rank")
            elif self._connected:
                self._read_all()
                self._die("disconnected", "the connection to its rank ended")

    def _read_all(self) -> None:
        """What the rank sent before it went, its reason above all."""
        self._read()
        while self._reading and not self._died.done():
            self._read()

    def _die(self, cause: DeathCause, reason: str) -> None:
        if self._died.done():
            return
        self._died.set_result(ReplicaDied(f"replica at {self._address} is gone: {reason}", cause=cause))
        self._loop.remove_reader(self._socket.FD)
        self._loop.remove_reader(self._monitor.FD)
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=_LINGER_MS if cause == "closed" else 0)
        streams, self._streams = self._streams, {}
        for queue in streams.values():
            queue.put_nowait(ReplicaDied(str(self.dead), cause=cause))
        for answer in self._pongs.values():
            if not answer.done():
                answer.set_exception(ReplicaDied(str(self.dead), cause=cause))


def _error_of(refused: Refused) -> DraftwingError:
    match refused.kind:
        case "request":
            code = refused.code or "invalid_request_error"
            return RequestError(refused.message, param=refused.param, code=code)
        case "overloaded":
            return OverloadedError(refused.message, retry_after_s=refused.retry_after_s)
        case "internal":
            return DraftwingError(refused.message)
