"""The drafter replica: a token drafter in a process of its own, which targets reach over its channel.

Drafts never pass through Ray: it places, scales and replaces the replica, and targets ask it where the channel is.
"""

from __future__ import annotations

import asyncio
import logging
import threading

from draftwing.config import Config, ServerConfig
from draftwing.errors import SetupError
from draftwing.logs import configure_logging
from draftwing.parallel.channel import ChannelServer
from draftwing.parallel.draft_server import DraftServer
from draftwing_serve.ray_edge import node_address

logger = logging.getLogger(__name__)
STOP_WAIT_S = 10.0


class DrafterReplica:
    """Serve deployment class. Its constructor returns when the drafter is ready to draft."""

    # Serve awaits a constructor that is a coroutine.
    async def __init__(self, config: Config) -> None:  # type: ignore[misc]
        configure_logging()
        own = config.model_copy(update={"server": ServerConfig()})
        self._channel = ChannelServer(node_address())
        self._server = await asyncio.to_thread(self._build, own)
        self._thread = threading.Thread(target=self._serve, name="drafter", daemon=True)
        self._thread.start()

    async def describe(self) -> dict[str, str]:
        """The channel's endpoint as plain data."""
        return self._channel.endpoint.to_dict()

    async def check_health(self) -> None:
        if not self._thread.is_alive():
            raise SetupError("the drafter's thread has ended")

    async def __del__(self) -> None:
        """Serve calls this when the replica is to go, and waits."""
        if hasattr(self, "_server"):
            self._server.request_stop()
            await asyncio.to_thread(self._thread.join, STOP_WAIT_S)

    def _build(self, config: Config) -> DraftServer:
        from draftwing.engine.build_drafter import build_drafter

        drafter, pool, info = build_drafter(config, lambda detail: logger.info("%s", detail))
        return DraftServer(drafter, self._channel, pool, info.vocab_size)

    def _serve(self) -> None:
        try:
            self._server.run()
        finally:
            self._channel.close()
