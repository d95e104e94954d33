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


def shortage(bundles: list[dict[str, float]]) -> str | None:
    """What the cluster's nodes lack together for these bundles, as one line; None where nothing is lacking."""
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    needed = {kind: sum(bundle.get(kind, 0.0) for bundle in bundles) for kind in ("CPU", "GPU")}
    lacking = [f"{there.get(kind, 0.0):g} of {n:g} {kind}s" for kind, n in needed.items() if n > there.get(kind, 0.0)]
    return f"the cluster has {' and '.join(lacking)} that the ranks need; waiting for nodes" if lacking else None


def bundles_by_node(ranks: int) -> Sequence[int | None]:
    """Bundles of this replica's placement group for ranks 0, 1, ...; None for each where it runs in none."""
    group = ray.util.get_current_placement_group()
    if group is None:
        return [None] * ranks
    nodes: dict[int, str] = ray.util.placement_group_table(group)["bundles_to_node_id"]
    return by_node(nodes)


def by_node(nodes: dict[int, str]) -> list[int]:
    """Bundle 0 first, then the others of its node, then node by node. nodes: by bundle."""
    return sorted(nodes, key=lambda bundle: (bundle != 0, nodes[bundle] != nodes[0], nodes[bundle], bundle))


def make_actor(cls: type, *args: Any, bundle: int | None, cpus: float, gpus: int) -> Any:
    """Start an actor in a bundle of this replica's placement group. A dead one is not restarted by itself."""
    options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "max_concurrency": 4}
    group = ray.util.get_current_placement_group()
    if bundle is not None and group is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    return ray.remote(cls).options(**options).remote(*args)


def shutdown_serve() -> None:
    serve.shutdown()  # type: ignore[no-untyped-call]
