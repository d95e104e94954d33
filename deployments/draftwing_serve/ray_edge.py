"""The few untyped calls into Ray, typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray import serve
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


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


def cluster_cpus() -> float:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get("CPU", 0.0)


def bundles_by_node(ranks: int) -> Sequence[int | None]:
    """Bundles of this replica's placement group for ranks 0, 1, ...: bundle 0 first, then those of its node, then node
    by node. None for each where the replica runs in no placement group."""
    group = ray.util.get_current_placement_group()
    if group is None:
        return [None] * ranks
    nodes: dict[int, str] = ray.util.placement_group_table(group)["bundles_to_node_id"]
    own = nodes[0]
    return sorted(nodes, key=lambda bundle: (bundle != 0, nodes[bundle] != own, nodes[bundle], bundle))


def make_actor(cls: type, *args: Any, bundle: int | None, cpus: float, gpus: int) -> Any:
    """Start an actor in a bundle of this replica's placement group. A dead one is not restarted by itself."""
    options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "max_concurrency": 4}
    group = ray.util.get_current_placement_group()
    if bundle is not None and group is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    return ray.remote(cls).options(**options).remote(*args)


def shutdown_serve() -> None:
    serve.shutdown()  # type: ignore[no-untyped-call]
