"""HTTP routers that other packages contribute through the entry-point group `draftwing.routes`.

An entry point names a function that takes the `GatewayCore` and returns a FastAPI router.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from fastapi import APIRouter

from draftwing.errors import SetupError

if TYPE_CHECKING:
    from draftwing_serve.gateway import GatewayCore

GROUP = "draftwing.routes"


@cache
def installed_routes() -> tuple[EntryPoint, ...]:
    """Read once: it looks through every installed package."""
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: point.name))


def extension_routers(core: GatewayCore) -> Iterator[APIRouter]:
    """SetupError naming the entry point when one can't be loaded or returns something else."""
    for point in installed_routes():
        try:
            make = point.load()
        except (ImportError, AttributeError) as error:
            raise SetupError(f"the routes {point.name!r} ({point.value}) can't be loaded: {error}") from error
        router = make(core)
        if not isinstance(router, APIRouter):
            raise SetupError(
                f"the routes {point.name!r} ({point.value}) returned {type(router).__name__}, not a router"
            )
        yield router
