"""Routes of the page. Everything is rendered here; the script only puts newer pieces of the same HTML in place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from fastapi import APIRouter, Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response, StreamingResponse

from draftwing import __version__
from draftwing.parallel.messages import RankStats
from draftwing_dashboards.web.view import View, view
from draftwing_dashboards.web.what_if import Question, answer, parse

PERIOD_S = 1.0
LIVE_PIECES = ("headline", "live", "problems", "depths", "map", "time")
STATIC = {"dash.css": "text/css; charset=utf-8", "dash.js": "text/javascript; charset=utf-8"}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Pool(Protocol):
    def stats(self) -> Awaitable[dict[str, RankStats]]: ...


class Core(Protocol):
    """The gateway, as far as the page needs it."""

    @property
    def pool(self) -> Pool: ...
    @property
    def preparer(self) -> Any: ...


def router(core: Core) -> APIRouter:
    """The entry point `draftwing.routes`."""
    routes = APIRouter(prefix="/dash", include_in_schema=False)

    async def seen() -> View:
        stats: Sequence[RankStats] = list((await core.pool.stats()).values())
        return view(stats)

    @routes.get("")
    async def page(request: Request) -> Response:
        fields = dict(request.query_params)
        try:
            question, wrong = parse(fields), ""
        except ValueError as error:
            question, wrong = Question(), str(error)
        html = _template("dash.html.j2").render(
            view=await seen(),
            model=core.preparer.facts.name,
            version=__version__,
            what_if=answer(question),
            wrong=wrong,
        )
        return HTMLResponse(html, status_code=400 if wrong else 200, headers=HEADERS)

    @routes.get("/events")
    async def events() -> Response:
        return StreamingResponse(_events(seen), media_type="text/event-stream", headers=HEADERS)

    @routes.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in STATIC:
            return Response(status_code=404)
        return Response(_static(name), media_type=STATIC[name], headers=HEADERS)

    return routes


async def _events(seen: Callable[[], Awaitable[View]]) -> AsyncGenerator[str, None]:
    """The live pieces, whenever one has changed; a comment else, so that a client that has gone is noticed."""
    before: dict[str, str] = {}
    while True:
        now = await seen()
        pieces = {name: _piece(name, now) for name in LIVE_PIECES}
        changed = {name: html for name, html in pieces.items() if before.get(name) != html}
        yield f"data: {json.dumps(changed)}\n\n" if changed else ": nothing new\n\n"
        before = pieces
        await asyncio.sleep(PERIOD_S)


def _piece(name: str, now: View) -> str:
    module = _template("pieces.html.j2").module
    return str(getattr(module, name)(now))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("draftwing_dashboards.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = lambda share: f"{100 * share:.1f} %"
    return environment


@cache
def _template(name: str) -> Any:
    return _environment().get_template(name)


@cache
def _static(name: str) -> bytes:
    return (files("draftwing_dashboards.web") / "static" / name).read_bytes()
