"""The target replica: starts its ranks, proves that they work, watches them, says where rank 0 listens.

Tokens never pass through here: gateways stream from the rank's own channel.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict, dataclass
from typing import Any

import ray
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from draftwing.checkpoints.hub import resolve_model
from draftwing.config import Config, ServerConfig
from draftwing.core import Request, SamplingParams
from draftwing.errors import DraftwingError, SetupError
from draftwing.logs import configure_logging
from draftwing.parallel.client import EngineClient, ReplicaDied
from draftwing.parallel.endpoint import Endpoint
from draftwing_serve import board
from draftwing_serve.profile_watch import ProfileWatch
from draftwing_serve.rank_team import RankTeam
from draftwing_serve.steering import Action, pause_of

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 3600.0
STUCK_S = 120.0  # a step may be long (a big prefill on a CPU); no answer for this long is a rank that hangs
IDLE_S = 10.0  # after which ranks that follow another are tried by a step of their own
_PING_S = 2.0
_DRAFTER_POLL_S, _DRAFTER_WAIT_S = 1.0, 2.0


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """What gateways need: where the rank listens, and which model with which bounds it serves."""

    endpoint: Endpoint
    digest: str
    context: int
    vocab_size: int


class TargetReplica:
    """Serve deployment class. Its constructor returns when the rank has done a real forward step."""

    # Serve awaits a constructor that is a coroutine.
    async def __init__(  # type: ignore[misc]
        self,
        config: Config,
        application: str,
        factory: str,
        gpus: int,
        drafter: DeploymentHandle[Any] | None = None,
    ) -> None:
        configure_logging()
        self._application = application
        self._description: TargetDescription | None = None
        self._answered = 0.0
        self._several = config.parallel.ranks > 1
        try:
            folder = await asyncio.to_thread(resolve_model, config.model, self._tell)
            # The keys of the HTTP API are none of the rank's business.
            own = config.model_copy(update={"server": ServerConfig()})
            self._team = RankTeam(own.model_dump_json(), factory, config.parallel.ranks, gpus, self._tell)
            async with asyncio.timeout(START_TIMEOUT_S):
                endpoint, ready = await self._team.start()
            self._client = await EngineClient.connect(endpoint)
            self._tell("first forward step")
            await self._real_step("first")
        except DraftwingError as error:
            board.post(application, {"state": "failed", "error": str(error), "exit_code": error.exit_code})
            raise
        if reason := board.read(pause_of(application)).get("reason"):
            await self._team.pause(reason)
        policy = (await self._client.stats()).policy
        live = policy.profile if policy is not None else ""
        uri = config.policy.profile if live else None
        self._profiles = ProfileWatch(uri, self._team.use_profile, live)
        self._drafter = drafter
        self._watchers = [asyncio.create_task(self._watch_drafters())] if drafter is not None else []
        if uri is not None:
            self._watchers.append(asyncio.create_task(self._profiles.run()))
        self._description = TargetDescription(endpoint, folder.digest, ready["context"], ready["vocab_size"])
        self._tell("ready")

    async def describe(self) -> dict[str, Any]:
        """The `TargetDescription` as plain data."""
        assert self._description is not None
        return asdict(self._description)

    async def check_health(self) -> None:
        """Every rank's process lives, and the engine answers between steps; where ranks are many, idle ones make one.

        A dead actor's own error goes out as it is: by it Serve knows to replace the replica at once.
        """
        if not await self._team.alive():
            raise SetupError("a rank's engine has ended")
        now = asyncio.get_running_loop().time()
        try:
            stats = await self._client.stats(_PING_S)
            if self._several and not stats.running + stats.waiting and (stats.last_step_age_s or 0) > IDLE_S:
                async with asyncio.timeout(_PING_S):
                    await self._real_step("health")
        except TimeoutError:
            if now - self._answered > STUCK_S:
                raise SetupError(f"the rank has not answered for {STUCK_S:g} seconds; its step hangs") from None
        except ReplicaDied as error:
            raise SetupError(str(error)) from error
        else:
            self._answered = now

    async def steer(self, action: Action, reason: str) -> str:
        """What an operator asked of every replica; what came of it here, "" where that is just what was asked.

        A pause is noted in the cluster too: a replica that starts later begins with it.
        """
        match action:
            case "look":
                return await self._profiles.look()
            case "pause" | "resume":
                held = reason if action == "pause" else ""
                board.post(pause_of(self._application), {"reason": held})
                return await self._team.pause(held)

    async def drain(self, grace_s: float) -> int:
        """Refuse new requests and wait for those under way; how many are left after grace_s."""
        await self._client.drain()
        deadline = asyncio.get_running_loop().time() + grace_s
        while True:
            stats = await self._client.stats(grace_s)
            left = stats.running + stats.waiting
            if not left or asyncio.get_running_loop().time() > deadline:
                return left
            await asyncio.sleep(0.05)

    async def __del__(self) -> None:
        """Serve calls this when the replica is to go, and waits."""
        if self._description is not None:
            self._description = None
            for watcher in self._watchers:
                watcher.cancel()
            await self._client.close()
            await self._team.stop()

    async def _watch_drafters(self) -> None:
        """Tell the rank where its drafters are, whenever that changes; without any it decodes plainly."""
        known: list[dict[str, str]] = []
        while True:
            try:
                async with asyncio.timeout(_DRAFTER_WAIT_S):
                    found = await self._drafter.broadcast("describe").results_async()  # type: ignore[union-attr]
            except (TimeoutError, ray.exceptions.RayError, RayServeException) as error:
                logger.warning("no answer from the drafters: %s", str(error).splitlines()[:1])
                found = []
            if (endpoints := sorted(found, key=lambda each: str(each["address"]))) != known:
                await self._team.connect_drafters(endpoints)
                known = endpoints
            await asyncio.sleep(_DRAFTER_POLL_S)

    async def _real_step(self, name: str) -> None:
        """One request through everything: a rank that can't compute must not be found out by a client."""
        params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
        async for emission in self._client.stream(Request(name, [0, 1, 2, 3], params)):
            if emission.error is not None:
                raise DraftwingError(f"the {name} step failed: {emission.error}")
        self._answered = asyncio.get_running_loop().time()

    def _tell(self, detail: str) -> None:
        board.post(self._application, {"state": "loading", "detail": detail})
        logger.info("%s", detail)
