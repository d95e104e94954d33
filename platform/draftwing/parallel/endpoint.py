"""Where a rank listens, and the keys that open it.

Every connection is encrypted and both sides prove who they are (CURVE), on loopback too: other users share the
machine. A rank makes all keys when it starts and hands the endpoint out over a channel that is already trusted (a pipe
to its parent, Ray with token authentication).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import zmq

from draftwing.errors import SetupError

_KEY_CHARS = 40


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair, both halves in Z85 (40 ASCII characters)."""

    public: str
    secret: str = field(repr=False)

    @staticmethod
    def new() -> KeyPair:
        public, secret = zmq.curve_keypair()
        return KeyPair(public.decode(), secret.decode())


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a rank (tcp://host:port), its public key, and the key pair its clients prove themselves with.

    Whoever has it may use the rank: never log it whole (repr hides the secret).
    """

    address: str
    server_public: str
    client_public: str
    client_secret: str = field(repr=False)

    def to_dict(self) -> dict[str, str]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Endpoint:
        """Raises SetupError naming the field that is missing, unknown or malformed."""
        names = ("address", "server_public", "client_public", "client_secret")
        if set(values) != set(names):
            raise SetupError(f"an endpoint has {', '.join(names)}; got {', '.join(sorted(map(str, values)))}")
        for name in names:
            value = values[name]
            if not isinstance(value, str) or (name != "address" and len(value) != _KEY_CHARS):
                raise SetupError(f"endpoint field {name} must be text, a key {_KEY_CHARS} characters of Z85")
        if not values["address"].startswith("tcp://"):
            raise SetupError(f"endpoint address {values['address']!r} must be tcp://HOST:PORT")
        return Endpoint(**values)
