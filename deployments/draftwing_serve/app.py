"""The Serve application: a gateway that holds the clients' streams, and the target replica behind it.

`build` is what `serve run draftwing_serve.app:build` and Serve's config files name; its arguments are our own config.
"""

# No `from __future__ import annotations` here: Serve reads the class from the annotation of `build`.
import asyncio
import logging
import os
import time
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from draftwing.checkpoints.hub import resolve_model
from draftwing.checkpoints.tokenizer import load_tokenizer
from draftwing.config import Config, require_model, with_environment
from draftwing.errors import DraftwingError
from draftwing.logs import configure_logging
from draftwing.parallel.client import EngineClient
from draftwing.parallel.endpoint import Endpoint
from draftwing_serve.drafter import DrafterReplica
from draftwing_serve.engines import Advert, EnginePool
from draftwing_serve.gateway import GatewayCore, GatewayOptions
from draftwing_serve.http_api import make_app
from draftwing_serve.prepare import ModelFacts, Preparer
from draftwing_serve.rank_actor import DEFAULT_FACTORY
from draftwing_serve.rank_team import RANK_CPUS
from draftwing_serve.ray_edge import cluster_gpus, deployment
from draftwing_serve.steering import Action
from draftwing_serve.target import TargetReplica

logger = logging.getLogger(__name__)

APPLICATION = "draftwing"
GATEWAY, TARGET, DRAFTER = "gateway", "target", "drafter"
REPLICA_CPUS = 0.1
HEALTH_PERIOD_S = 1.0
HEALTH_TIMEOUT_S = 10.0
_DISCOVERY_S = 2.0
STEER_S = 30.0  # a profile is read meanwhile


class Gateway:
    """Serve deployment class around a `GatewayCore`, whose application it builds when the target is known."""

    def __init__(self, config: Config, target: DeploymentHandle[Any]) -> None:
        configure_logging()
        self._config = config
        self._target = target
        self._core: GatewayCore | None = None

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """Serve calls this after the constructor, and calls the replica ready when it returns."""
        config, target = self._config, self._target
        folder = await asyncio.to_thread(resolve_model, config.model)
        trust = config.model.trust_remote_code
        tokenizer = await asyncio.to_thread(load_tokenizer, folder, trust_remote_code=trust)
        # Waits until a target replica is up: this application is ready when it can answer.
        described = await target.describe.remote()
        facts = ModelFacts(
            name=config.model.served_name,
            aliases=tuple(config.model.aliases),
            context=described["context"],
            vocab_size=described["vocab_size"],
            digest=described["digest"],
            created=int(time.time()),
        )
        options = GatewayOptions(
            keys=tuple(key.get_secret_value() for key in config.server.keys or ()),
            profile=config.policy.profile,
            request_timeout_s=config.server.request_timeout_s,
            # Serve's own proxy writes the header; HAProxy in front doesn't.
            echo_request_id=os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1",
        )
        pool = EnginePool(self._discover, EngineClient.connect)
        self._core = GatewayCore(Preparer(facts, tokenizer, config.limits.request), pool, options, self._steer)
        await pool.refresh()
        return make_app(self._core)

    async def __del__(self) -> None:
        if self._core is not None:
            await self._core.close()

    async def _discover(self) -> list[Advert]:
        """The replicas that are up; none while they are being replaced."""
        try:
            async with asyncio.timeout(_DISCOVERY_S):
                found = await self._target.broadcast("describe").results_async()
        except (TimeoutError, ray.exceptions.RayError, RayServeException) as error:
            logger.warning("no answer from the target replicas: %s", str(error).splitlines()[:1])
            return []
        return [Advert(Endpoint(**each["endpoint"]), each["digest"]) for each in found]

    async def _steer(self, action: Action, reason: str) -> list[str]:
        """All replicas that Serve runs now, whether or not this gateway is connected to them."""
        try:
            async with asyncio.timeout(STEER_S):
                answers: list[str] = await self._target.broadcast("steer", action, reason).results_async()
        except (TimeoutError, ray.exceptions.RayError, RayServeException) as error:
            logger.warning("not all replicas took %s: %s", action, error)
            raise DraftwingError(f"not every replica took it within {STEER_S:g} seconds; look, and try again") from None
        return answers


def build(config: Config) -> serve.Application:
    """The application of a config, over which the environment's variables go (a pod's secrets, say).

    ConfigError when it names no model.
    """
    return build_with(with_environment(config), factory=DEFAULT_FACTORY)


def build_with(config: Config, *, factory: str) -> serve.Application:
    """factory: `module:function` that makes the engine inside the rank (tests put a small one in)."""
    require_model(config)
    gpus = rank_gpus(config)
    target = deployment(
        TargetReplica,
        name=TARGET,
        num_replicas=config.server.replicas,
        ray_actor_options={"num_cpus": REPLICA_CPUS},
        placement_group_bundles=rank_bundles(config, gpus),
        placement_group_strategy="PACK",
        max_ongoing_requests=100,
        max_constructor_retry_count=3,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=20,
    )
    gateway = deployment(
        serve.ingress()(Gateway),
        name=GATEWAY,
        ray_actor_options={"num_cpus": REPLICA_CPUS},
        # The engine's queue is the bound, with an answer that says when to come back; this one must not come first.
        max_ongoing_requests=2 * (config.limits.sequences + config.limits.queue) + 100,
        max_constructor_retry_count=3,
        health_check_period_s=HEALTH_PERIOD_S,
        graceful_shutdown_timeout_s=20,
    )
    drafter = _drafter(config)
    bound = target.bind(config, APPLICATION, factory, gpus, *([drafter] if drafter is not None else []))
    application: serve.Application = gateway.bind(config, bound)
    return application


def rank_bundles(config: Config, gpus: int) -> list[dict[str, float]]:
    """One bundle a rank of a replica; the replica itself is in the first."""
    bundle = {"CPU": RANK_CPUS, **({"GPU": float(gpus)} if gpus else {})}
    return [bundle | {"CPU": REPLICA_CPUS + RANK_CPUS}] + [bundle] * (config.parallel.ranks - 1)


def _drafter(config: Config) -> serve.Application | None:
    """The deployment of a drafter that has a placement."""
    placement = config.drafters[0].placement if config.drafters else None
    if placement is None:
        return None
    made = deployment(
        DrafterReplica,
        name=DRAFTER,
        num_replicas=placement.replicas,
        ray_actor_options={"num_cpus": REPLICA_CPUS, "num_gpus": placement.gpus},
        max_ongoing_requests=100,
        max_constructor_retry_count=3,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=5,
    )
    return made.bind(config)


def rank_gpus(config: Config) -> int:
    """GPUs a rank takes: one if the config wants one, or takes what there is and the cluster has one."""
    if config.model.device == "auto":
        return 1 if cluster_gpus() >= 1 else 0
    return 1 if config.model.device == "cuda" else 0
