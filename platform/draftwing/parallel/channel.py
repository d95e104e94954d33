"""The rank's side of the channel: one ROUTER socket, owned and polled by the engine's own thread.

It never blocks on a client: sends are immediate or refused. Strangers are stopped before their bytes reach us (CURVE
and the key check below); bytes that are no message are counted and dropped. The clients' side: `client.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal

import zmq
from zmq.utils import z85

from draftwing.errors import SetupError
from draftwing.parallel import wire
from draftwing.parallel.endpoint import Endpoint, KeyPair
from draftwing.parallel.messages import Beat, Message

log = logging.getLogger(__name__)

ClientId = bytes
Sent = Literal["sent", "gone", "full"]

# A peer whose machine or network is gone closes nothing; libzmq's own thread finds out by these, also while the
# engine computes. A killed process is noticed at once, by its closed connection.
HEARTBEAT_MS = 1000
HEARTBEAT_TIMEOUT_MS = 5000

_SEND_QUEUE = 1000  # messages a client may lag behind: one a step
_DRAIN_AT_ONCE = 1000
_LINGER_MS = 1000
_ANY = ("0.0.0.0", "::", "*")


class ChannelServer:
    """Listens on host:port (0: any free one); `endpoint` is what clients need.

    advertise: the host that clients on other machines connect to, needed when host is a wildcard.
    Single-threaded: whoever polls it owns it. Raises SetupError when it can't listen there.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, *, advertise: str | None = None, send_queue: int = _SEND_QUEUE
    ) -> None:
        if host in _ANY and advertise is None:
            raise SetupError(f"channel host {host!r} is a wildcard; advertise the one that clients connect to")
        keys, client_keys = KeyPair.new(), KeyPair.new()
        self._context = zmq.Context()
        self._doorkeeper = _Doorkeeper(self._context, {client_keys.public})
        self._socket = self._context.socket(zmq.ROUTER)
        _configure(self._socket, keys, send_queue)
        try:
            self._socket.bind(f"tcp://{_bracketed(host)}:{port or '*'}")
        except zmq.ZMQError as error:
            self.close()
            raise SetupError(f"can't listen on {host}:{port}: {error.strerror}; choose another host or port") from error
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(bound.rpartition(":")[2])
        address = f"tcp://{_bracketed(advertise or host)}:{self.port}"
        self.endpoint = Endpoint(address, keys.public, client_keys.public, client_keys.secret)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._doorkeeper.socket, zmq.POLLIN)
        self.bad_frames = 0

    def receive(self, timeout_s: float) -> list[tuple[ClientId, Message]]:
        """What has arrived; waits up to timeout_s for something (0: not at all). May return nothing early."""
        ready = dict(self._poller.poll(round(timeout_s * 1000)))
        if self._doorkeeper.socket in ready:
            self._doorkeeper.answer()
        return list(self._drain()) if self._socket in ready else []

    def send(self, client: ClientId, message: Message) -> Sent:
        """Queue a message now. gone: the client is no more; full: it reads too slowly, the message was not queued."""
        try:
            self._socket.send_multipart([client, wire.encode(message)], zmq.DONTWAIT)
        except zmq.Again:
            return "full"
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return "gone"
            raise
        return "sent"

    def close(self) -> None:
        """Stop listening; what was sent is still delivered, for a second at most."""
        self._doorkeeper.socket.close(linger=0)
        self._socket.close(linger=_LINGER_MS)
        self._context.term()

    def _drain(self) -> Iterator[tuple[ClientId, Message]]:
        for _ in range(_DRAIN_AT_ONCE):
            try:
                parts = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            try:
                if len(parts) != 2:
                    raise wire.WireError(f"a message of {len(parts) - 1} parts; it has 1")
                message = wire.decode(parts[1])
            except wire.ProtocolMismatch as error:
                self._bad(error)
                # Any frame of ours tells the other side which protocol this is.
                self.send(parts[0], Beat())
            except wire.WireError as error:
                self._bad(error)
            else:
                yield parts[0], message

    def _bad(self, error: wire.WireError) -> None:
        self.bad_frames += 1
        if self.bad_frames & (self.bad_frames - 1) == 0:  # 1, 2, 4, 8...: a flood doesn't flood the log
            log.warning("dropped a message from a client (%d so far): %s", self.bad_frames, error)


class _Doorkeeper:
    """Answers libzmq's authentication questions (ZAP, RFC 27): a connection is let in if its key is known."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allowed: set[str]) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.bind("inproc://zeromq.zap.01")
        self._allowed = allowed

    def answer(self) -> None:
        try:
            version, sequence, _domain, address, _identity, mechanism, *credentials = self.socket.recv_multipart(
                zmq.DONTWAIT
            )
        except zmq.Again:
            return
        known = mechanism == b"CURVE" and len(credentials) == 1 and _z85(credentials[0]) in self._allowed
        if not known:
            log.warning("refused a connection from %s: its key is not this rank's", address.decode(errors="replace"))
        status = (b"200", b"OK") if known else (b"400", b"unknown key")
        self.socket.send_multipart([version, sequence, *status, b"", b""])


def _z85(key: bytes) -> str:
    encoded: bytes = z85.encode(key)
    return encoded.decode()


def _configure(socket: zmq.Socket[bytes], keys: KeyPair, send_queue: int) -> None:
    socket.curve_server = True
    socket.curve_secretkey = keys.secret.encode()
    socket.curve_publickey = keys.public.encode()
    socket.zap_domain = b"draftwing"
    socket.router_mandatory = True
    socket.ipv6 = True
    socket.sndhwm = send_queue
    _common_options(socket)


def client_socket(endpoint: Endpoint, send_queue: int) -> zmq.Socket[bytes]:
    """The clients' side, not connected yet. send_queue: messages the rank may lag behind."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    socket = context.socket(zmq.DEALER)
    socket.curve_serverkey = endpoint.server_public.encode()
    socket.curve_publickey = endpoint.client_public.encode()
    socket.curve_secretkey = endpoint.client_secret.encode()
    socket.ipv6 = True
    socket.sndhwm = send_queue
    _common_options(socket)
    return socket


def _common_options(socket: zmq.Socket[bytes]) -> None:
    """What both sides of the channel set alike."""
    socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
