"""The rank's loop: drain messages, step the engine, send what the step gave; when idle, sleep on the socket.

One thread owns the engine and the socket. A request that can't be taken is refused alone; a step that raises ends the
rank: its clients are told, and whoever supervises it starts another (rule R3).
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from draftwing.core import Emission, EngineCounters, PolicyStatus, Request
from draftwing.errors import OverloadedError, RankLost, RequestError
from draftwing.parallel.channel import ChannelServer, ClientId
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
    RankState,
    RankStats,
    Refused,
    Shutdown,
    Submit,
)

log = logging.getLogger(__name__)

BEAT_S = 0.25
_LOADING_RETRY_S = 5
_REASON_CHARS = 500


class EngineLike(Protocol):
    """What a rank drives: `draftwing.engine.step.Engine`, or a stand-in."""

    @property
    def counters(self) -> EngineCounters: ...
    @property
    def busy(self) -> bool: ...
    @property
    def waiting(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def kv_use(self) -> float: ...
    def add(self, request: Request) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def step(self) -> list[Emission]: ...
    def policy_status(self) -> PolicyStatus | None: ...


@dataclass(slots=True)
class _Client:
    """A connection we heard from. requests: its live request ids -> the engine's. owed: it was dropped for reading too
    slowly, and has not been told yet because its queue is full."""

    number: int
    requests: dict[str, str] = field(default_factory=dict)
    owed: Lost | None = None


class RankServer:
    """Serves one engine on one channel until told to stop. `run` in the thread that is to own both."""

    def __init__(self, engine: EngineLike, channel: ChannelServer) -> None:
        self._engine = engine
        self._channel = channel
        self._clients: dict[ClientId, _Client] = {}
        self._owners: dict[str, tuple[ClientId, str]] = {}  # the engine's request id -> client, its request id
        self._numbers = itertools.count()
        self._state: RankState = "ready"
        self._started = monotonic()
        self._last_step: float | None = None
        self._next_beat = 0.0
        self._stop_reason: str | None = None
        self._between: deque[Callable[[], None]] = deque()
        self.policy_generation = 0

    def between_steps(self, act: Callable[[], None]) -> None:
        """Call `act` in the engine's thread, before its next step or within BEAT_S. From any thread."""
        self._between.append(act)

    def use_policy(self, swap: Callable[[], None]) -> None:
        """`swap` puts another policy into the engine, between two steps. From any thread."""

        def act() -> None:
            swap()
            self.policy_generation += 1

        self.between_steps(act)

    def request_stop(self, reason: str = "the replica is stopping") -> None:
        """End `run` after the present step, or within BEAT_S when idle. From any thread or signal handler."""
        self._stop_reason = reason

    def run(self) -> int:
        """Serve. Returns the exit code: 0 when asked to stop, 1 when a step failed."""
        while self._stop_reason is None:
            for client, message in self._channel.receive(0 if self._engine.busy else BEAT_S):
                self._handle(client, message)
            while self._between:
                self._between.popleft()()
            if self._engine.busy:
                try:
                    emissions = self._engine.step()
                except Exception as error:  # whatever a forward raises, the engine's state is unknown now
                    log.exception("a step failed; this rank ends")
                    cause: LostCause = "rank_lost" if isinstance(error, RankLost) else "step_failed"
                    self._lose_all(cause, f"a step failed: {type(error).__name__}: {error}"[:_REASON_CHARS])
                    return 1
                self._last_step = monotonic()
                self._emit(emissions)
            self._beat()
        log.info("stopping: %s", self._stop_reason)
        self._lose_all("shutdown", self._stop_reason)
        return 0

    def stats(self) -> RankStats:
        """How this rank is doing now."""
        return RankStats(
            pid=os.getpid(),
            state=self._state,
            uptime_s=monotonic() - self._started,
            last_step_age_s=None if self._last_step is None else monotonic() - self._last_step,
            waiting=self._engine.waiting,
            running=self._engine.running,
            kv_use=self._engine.kv_use,
            clients=len(self._clients),
            bad_frames=self._channel.bad_frames,
            counters=self._engine.counters,
            policy_generation=self.policy_generation,
            policy=self._engine.policy_status(),
        )

    def _handle(self, client_id: ClientId, message: Message) -> None:
        if (client := self._clients.get(client_id)) is None:
            client = self._clients[client_id] = _Client(next(self._numbers))
        match message:
            case Submit():
                if (refused := self._submit(client_id, client, message.request)) is not None:
                    self._send(client_id, refused)
            case Cancel():
                if (ours := client.requests.get(message.request_id)) is not None:
                    self._cancel(ours)
            case Ping():
                self._send(client_id, Pong(message.nonce, self.stats()))
            case Drain():
                log.info("draining: no new requests are taken")
                self._state = "draining"
            case Shutdown():
                self.request_stop("the replica was told to shut down")
            case _:
                log.warning("client %d sent a %s, which only ranks send", client.number, type(message).__name__)

    def _submit(self, client_id: ClientId, client: _Client, request: Request) -> Refused | None:
        theirs = request.id
        if client.owed is not None:
            return None  # it is about to learn that everything it has here is lost
        if theirs in client.requests:
            return Refused(theirs, "request", f"request id {theirs!r} is in use", param="id")
        if self._state == "draining":
            return Refused(theirs, "overloaded", "this replica takes no new requests: it is draining")
        request.id = ours = f"{client.number}/{theirs}"
        try:
            self._engine.add(request)
        except RequestError as error:
            return Refused(theirs, "request", str(error), param=error.param, code=error.code)
        except OverloadedError as error:
            return Refused(theirs, "overloaded", str(error), retry_after_s=error.retry_after_s)
        except Exception as error:  # rule R3: a request that trips a fault of ours costs that request
            log.exception("request %s could not be taken", ours)
            return Refused(theirs, "internal", f"internal error: {type(error).__name__}: {error}"[:_REASON_CHARS])
        client.requests[theirs] = ours
        self._owners[ours] = client_id, theirs
        return None

    def _cancel(self, ours: str) -> None:
        self._engine.cancel(ours)
        self._forget(ours)

    def _forget(self, ours: str) -> None:
        client_id, theirs = self._owners.pop(ours)
        del self._clients[client_id].requests[theirs]

    def _emit(self, emissions: list[Emission]) -> None:
        """One message a client, with all that its requests got."""
        per_client: defaultdict[ClientId, list[Emission]] = defaultdict(list)
        for emission in emissions:
            ours = emission.request_id
            if ours not in self._owners:
                log.error("the engine emitted for request %s, which is over", ours)
                continue
            client_id, emission.request_id = self._owners[ours]
            per_client[client_id].append(emission)
            if emission.finish_reason is not None:
                self._forget(ours)
        for client_id, theirs in per_client.items():
            self._send(client_id, Events(theirs))

    def _send(self, client_id: ClientId, message: Message) -> None:
        """A client that has gone, or reads so slowly that its queue is full, is dropped: no one is waited for."""
        sent = self._channel.send(client_id, message)
        if sent == "sent":
            return
        client = self._clients[client_id]
        cancelled = len(client.requests)
        for ours in list(client.requests.values()):
            self._cancel(ours)
        if sent == "gone":
            del self._clients[client_id]
        elif client.owed is None:
            client.owed = Lost("slow_reader", "this client reads too slowly, and was dropped")
        if cancelled:
            why = "its connection ended" if sent == "gone" else "it reads too slowly"
            log.warning("client %d was dropped, %d requests cancelled: %s", client.number, cancelled, why)

    def _beat(self) -> None:
        """Sending finds the clients that have gone, and the dropped ones that can be told by now."""
        if (now := monotonic()) < self._next_beat:
            return
        self._next_beat = now + BEAT_S
        for client_id, client in list(self._clients.items()):
            if client.owed is None:
                self._send(client_id, Beat())
            elif self._channel.send(client_id, client.owed) != "full":
                client.owed = None  # told, or gone: then the next beat finds out

    def _lose_all(self, cause: LostCause, reason: str) -> None:
        for client_id in self._clients:
            self._channel.send(client_id, Lost(cause, reason))


@contextmanager
def answering_while_loading(channel: ChannelServer) -> Iterator[None]:
    """Inside, a second thread owns the channel: it says that the model is loading, and refuses requests for later."""
    loaded = threading.Event()
    thread = threading.Thread(target=_answer, args=(channel, loaded), name="loading", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loaded.set()
        thread.join()


def _answer(channel: ChannelServer, loaded: threading.Event) -> None:
    started = monotonic()
    while not loaded.is_set():
        for client_id, message in channel.receive(BEAT_S):
            match message:
                case Ping():
                    stats = RankStats(pid=os.getpid(), state="loading", uptime_s=monotonic() - started)
                    channel.send(client_id, Pong(message.nonce, stats))
                case Submit():
                    text = "the model is still loading"
                    refused = Refused(message.request.id, "overloaded", text, retry_after_s=_LOADING_RETRY_S)
                    channel.send(client_id, refused)
