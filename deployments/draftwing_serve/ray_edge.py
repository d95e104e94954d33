"""The few untyped calls into Ray, typed."""

from __future__ import annotations

from typing import Any

import ray
from ray import serve


def deployment(cls: type, **options: Any) -> serve.Deployment:
    made: serve.Deployment = serve.deployment(**options)(cls)
    return made


def node_address() -> str:
    """This node's address inside the cluster."""
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def cluster_gpus() -> float:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get("GPU", 0.0)


def shutdown_serve() -> None:
    serve.shutdown()  # type: ignore[no-untyped-call]
