"""What an operator may do from the page: it goes to every engine, and into the log with who asked for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import parse_qs

from fastapi import HTTPException, Request

from draftwing.errors import DraftwingError
from draftwing_dashboards.web.door import Door, Visitor, of_our_own

logger = logging.getLogger(__name__)
ACTIONS = {
    "pause": "Pause speculation",
    "resume": "Resume as configured",
    "look": "Look for a new profile",
}
NO_KEYS = "Actions need a key: set server.keys (or DRAFTWING_SERVER__KEYS) and start the server again."
NO_KEY = "This needs a key: open /dash and give one of server.keys, or send it as Authorization: Bearer."
ELSEWHERE = "This came from another site; use the page under /dash itself."
MOST_BYTES, MOST_FIELDS, BODY_S = 4096, 16, 10.0

Steer = Callable[..., Awaitable[list[str]]]  # the action and its reason; each engine's answer, "" for done


class Desk:
    """last: what was done last, by whom, and what came of it, as a sentence."""

    def __init__(self, door: Door, steer: Steer) -> None:
        self._door = door
        self._steer = steer
        self._one = asyncio.Lock()
        self.last = ""

    def admit(self, request: Request) -> Visitor:
        """Who may act. HTTPException says in one line why somebody may not."""
        if not self._door.locked:
            raise HTTPException(403, NO_KEYS)
        if (visitor := self._door.visitor(request)) is None:
            raise HTTPException(401, NO_KEY, {"WWW-Authenticate": "Bearer"})
        if visitor.ticket and not of_our_own(request):
            raise HTTPException(403, ELSEWHERE)
        return visitor

    async def do(self, action: str, visitor: Visitor, address: str) -> str:
        """What came of it, one line."""
        if action not in ACTIONS:
            raise HTTPException(400, f"do is {action[:40]!r}; expected {', '.join(ACTIONS)}")
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        async with self._one:
            try:
                outcome = summary(await self._steer(action, f"paused under /dash at {when} by key {visitor.key}"))
            except DraftwingError as error:
                outcome = str(error)
            self.last = f"{ACTIONS[action]}, {when}, by key {visitor.key}: {outcome}"
        logger.info("%s (from %s)", self.last, address)
        return self.last


def summary(answers: Sequence[str]) -> str:
    """What the engines said, each thing once."""
    if not answers:
        return "no engine answered"
    engines = f"of {len(answers)} engine{'s' * (len(answers) > 1)}"
    return "; ".join(f"{count} {engines}: {said or 'done'}" for said, count in Counter(answers).items())


async def form(request: Request) -> dict[str, str]:
    """The fields of a small form that a browser sent. HTTPException where it is none."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, f"content-type is {kind[:64]!r}; expected application/x-www-form-urlencoded")
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BYTES:
                    raise HTTPException(413, f"the form is longer than {MOST_BYTES} bytes")
    except TimeoutError:
        raise HTTPException(408, f"the form did not arrive within {BODY_S:g} seconds") from None
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise HTTPException(400, f"expected a form of at most {MOST_FIELDS} fields in UTF-8") from None
    return {name: values[-1] for name, values in fields.items()}
