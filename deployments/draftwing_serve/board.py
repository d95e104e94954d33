"""A notice board in the cluster: what a replica that is still starting, or failed to, says to whoever waits for it.

Serve answers no calls to a replica before its constructor has returned, and reports a failed one as a traceback.
"""

from __future__ import annotations

import json
from typing import Any

from ray.experimental import internal_kv

_NAMESPACE = "draftwing"


def post(application: str, notice: dict[str, Any]) -> None:
    """Replace the application's notice."""
    internal_kv._internal_kv_put(f"board:{application}", json.dumps(notice).encode(), namespace=_NAMESPACE)


def read(application: str) -> dict[str, Any]:
    """The latest notice, empty if there is none."""
    text = internal_kv._internal_kv_get(f"board:{application}", namespace=_NAMESPACE)
    notice: dict[str, Any] = json.loads(text) if text else {}
    return notice


def clear(application: str) -> None:
    internal_kv._internal_kv_del(f"board:{application}", namespace=_NAMESPACE)
