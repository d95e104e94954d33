"""Who may look at the page and act on it. A browser sends no Authorization header, so a key is given once for a ticket.

A ticket is `number.expires.mac`: the key's place in `server.keys`, seconds since 1970, and a hash of both under the
key. It lives in a cookie that no script reads and no other site sends.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from fastapi import Request

COOKIE = "draftwing_dash"
TICKET_S = 12 * 3600
SCHEME = "bearer"


@dataclass(frozen=True, slots=True)
class Visitor:
    """key: place in `server.keys`, from 1 on; 0: none is asked for. ticket: let in by one, not by the key itself."""

    key: int
    ticket: bool


class Door:
    """keys: `server.keys`. Without any everybody may look, and nobody may act."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]

    @property
    def locked(self) -> bool:
        return bool(self._keys)

    def visitor(self, request: Request) -> Visitor | None:
        """None: not let in."""
        if not self._keys:
            return Visitor(0, ticket=False)
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == SCHEME and (number := self.number(key.strip())):
            return Visitor(number, ticket=False)
        if number := self._holder(request.cookies.get(COOKIE, "")):
            return Visitor(number, ticket=True)
        return None

    def number(self, key: str) -> int:
        """The key's place, 0 if it is none. Every key is compared, each in constant time."""
        given = hashlib.sha256(key.encode()).digest()
        same = [hmac.compare_digest(given, hashlib.sha256(known).digest()) for known in self._keys]
        return same.index(True) + 1 if True in same else 0

    def ticket(self, number: int) -> str:
        return self._signed(number, int(time.time()) + TICKET_S)

    def _holder(self, ticket: str) -> int:
        """Whose ticket this is, 0 if it is nobody's or has run out."""
        number, _, rest = ticket.partition(".")
        expires = rest.partition(".")[0]
        if not all(part.isascii() and part.isdigit() and len(part) <= 12 for part in (number, expires)):
            return 0
        if not 0 < int(number) <= len(self._keys) or int(expires) < time.time():
            return 0
        wanted = self._signed(int(number), int(expires))
        return int(number) if hmac.compare_digest(wanted.encode(), ticket.encode()) else 0

    def _signed(self, number: int, expires: int) -> str:
        text = f"{number}.{expires}"
        return f"{text}.{hmac.new(self._keys[number - 1], f'dash.{text}'.encode(), hashlib.sha256).hexdigest()}"


def of_our_own(request: Request) -> bool:
    """Whether the browser says that a page of this server sent it."""
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    origin = request.headers.get("origin", "")
    return bool(origin) and urlsplit(origin).netloc == request.headers.get("host")
