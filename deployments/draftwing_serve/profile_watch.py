"""A running server takes the profile that is published where `policy.profile` points, or says why it doesn't."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from draftwing.errors import DraftwingError

logger = logging.getLogger(__name__)
POLL_S = 2.0


class ProfileWatch:
    """uri: where to look, None where no profile is in use. live: the digest of the one that is.

    use: makes the engine decide with what is published now; "" or why it is refused.
    """

    def __init__(self, uri: str | None, use: Callable[[], Awaitable[str]], live: str) -> None:
        self._uri = uri
        self._use = use
        self._live = live
        self._refused: str | None = None
        self._one = asyncio.Lock()

    async def run(self) -> None:
        """Look every POLL_S. A profile that is refused is named in the log once, and the old one stays."""
        said = ""
        while True:
            if (found := await self.look(again=False)) != said and found:
                logger.info("%s", found)
            said = found
            await asyncio.sleep(POLL_S)

    async def look(self, *, again: bool = True) -> str:
        """What came of a look, in words. again: try also what was refused before; else "" where nothing is new."""
        from draftwing.policy.artifact import current

        if self._uri is None:
            return "no profile is in use: policy.profile is not set, or the policy's mode uses none"
        async with self._one:
            try:
                published = await asyncio.to_thread(current, self._uri)
            except DraftwingError as error:
                return f"can't look for a profile: {error}"
            if published is None:
                return f"no profile is published in {self._uri}" if again else ""
            if published == self._live or (published == self._refused and not again):
                return f"profile {published} is live, and none is newer" if again else ""
            if refused := await self._use():
                self._refused = published
                return f"profile {published} is not used: {refused}"
            self._live, self._refused = published, None
            return f"profile {published} is used from now on"
