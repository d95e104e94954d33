"""From one Draftwing config to what KubeRay takes: Serve's config, and the part of a RayService that depends on it.

The base in `k8s/base` holds what no config changes. An overlay holds its config and what `draftwing k8s render` makes
of it, as a strategic-merge patch. Fields: KubeRay 1.7's RayService and Ray 2.60's `ServeDeploySchema`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import yaml

from draftwing.config import Config, require_model
from draftwing.errors import ConfigError

APPLICATION, IMPORT_PATH, PORT = "draftwing", "draftwing_serve.app:build", 8000
RESOURCE_NAME = "draftwing"
CACHE_MOUNT = "/var/cache/draftwing"
SHM_GIB = 16  # NCCL's buffers between the GPUs of a node
HEALTH = "http://localhost:52365/api/local_raylet_healthz"


@dataclass(frozen=True, slots=True)
class PodShape:
    """One worker pod: a node's worth of ranks. cpus and memory (a Kubernetes quantity) are per pod."""

    gpus: int = 8
    cpus: int = 16
    memory: str = "128Gi"
    image: str = "draftwing:latest"


class _Block(str):
    """Text that YAML shows as it is, line by line."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """What stands in two places is written twice: readers shouldn't have to look up."""
        return True


_Dumper.add_representer(_Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|"))


def serve_config(config: Config) -> dict[str, Any]:
    """What `serve deploy` takes. ConfigError when the config names no model, or holds keys.

    Inside a pod, Serve listens on every address: the service in front of it needs that.
    """
    require_model(config)
    if config.server.keys is not None:
        raise ConfigError(
            "server.keys would be readable in the RayService; leave it out and put the keys into the secret "
            "draftwing-keys, as DRAFTWING_SERVER__KEYS"
        )
    args = config.model_dump(mode="json", exclude_unset=True, exclude={"server": {"host", "port"}})
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": PORT},
        "applications": [
            {
                "name": APPLICATION,
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": {name: value for name, value in args.items() if value not in ({}, [])},
            }
        ],
    }


def ray_service(config: Config, pod: PodShape) -> dict[str, Any]:
    """The patch of an overlay: `serveConfigV2` and the group of workers that its ranks need.

    A config for a CPU puts every rank into one pod; else a pod holds as many ranks as it has GPUs, and `numOfHosts`
    pods of one group start and stop together.
    """
    text = yaml.safe_dump(serve_config(config), sort_keys=False, width=110)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": RESOURCE_NAME},
        "spec": {
            "serveConfigV2": _Block(text),
            "rayClusterConfig": {"workerGroupSpecs": [_group(config, pod)]},
        },
    }


def _group(config: Config, pod: PodShape) -> dict[str, Any]:
    on_gpu = config.model.device != "cpu"
    per_replica = config.parallel.ranks
    gpus = min(pod.gpus, per_replica) if on_gpu else 0
    hosts = math.ceil(per_replica / gpus) if gpus else 1
    if gpus and per_replica % gpus:
        raise ConfigError(
            f"a replica's {per_replica} ranks don't fill pods of {gpus} GPUs; expected --gpus-per-pod to divide them"
        )
    replicas = config.server.replicas if gpus else 1
    resources = {"cpu": str(pod.cpus), "memory": pod.memory, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {
        "groupName": "target-gpu" if gpus else "target-cpu",
        "replicas": replicas,
        "minReplicas": replicas,
        "maxReplicas": replicas,
        "numOfHosts": hosts,
        "rayStartParams": {},
        "template": {"spec": _pod(pod, resources, gpus > 0)},
    }


def _pod(pod: PodShape, resources: dict[str, str], on_gpu: bool) -> dict[str, Any]:
    # KubeRay's own readiness asks Serve's proxy, and a pod that holds only ranks has none: it would never be ready.
    ready = {
        "exec": {"command": ["bash", "-c", f"wget --tries 1 -T 2 -q -O- {HEALTH} | grep success"]},
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "failureThreshold": 12,
    }
    container = {
        "name": "ray-worker",
        "image": pod.image,
        "env": [{"name": "DRAFTWING_CACHE", "value": CACHE_MOUNT}],
        "envFrom": [{"secretRef": {"name": "draftwing-keys", "optional": True}}],
        "resources": {"limits": resources, "requests": resources},
        "readinessProbe": ready,
        "volumeMounts": [
            {"name": "cache", "mountPath": CACHE_MOUNT},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    volumes = [
        {"name": "cache", "persistentVolumeClaim": {"claimName": "draftwing-cache"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHM_GIB if on_gpu else 1}Gi"}},
    ]
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}] if on_gpu else []
    return {"containers": [container], "volumes": volumes, **({"tolerations": tolerations} if tolerations else {})}


def as_yaml(document: dict[str, Any], head: str = "") -> str:
    """head: a comment on top."""
    lines = "".join(f"# {line}\n" for line in head.splitlines())
    return lines + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110)
