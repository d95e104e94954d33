"""Routes of the page. Everything is rendered here; the script only puts newer pieces of the same HTML in place."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from fastapi import APIRouter, HTTPException, Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse

from draftwing import __version__
from draftwing.parallel.messages import RankStats
from draftwing_dashboards.web.actions import ACTIONS, ELSEWHERE, NO_KEY, NO_KEYS, Desk, Steer, form
from draftwing_dashboards.web.door import COOKIE, TICKET_S, Door, of_our_own
from draftwing_dashboards.web.study import Studies, Study
from draftwing_dashboards.web.view import View, view
from draftwing_dashboards.web.what_if import Question, answer, parse

logger = logging.getLogger(__name__)
PERIOD_S = 1.0
LIVE_PIECES = ("headline", "live", "problems", "done", "depths", "map", "time", "study")
STATIC = {"dash.css": "text/css; charset=utf-8", "dash.js": "text/javascript; charset=utf-8"}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with none at all, browsers hide the origin of our own forms from us
    "cache-control": "no-store",
}


class Pool(Protocol):
    @property
    def engines(self) -> Sequence[object]: ...
    def stats(self) -> Awaitable[dict[str, RankStats]]: ...


class Core(Protocol):
    """The gateway, as far as the page needs it."""

    @property
    def pool(self) -> Pool: ...
    @property
    def preparer(self) -> Any: ...
    @property
    def options(self) -> Any: ...
    @property
    def steer(self) -> Steer: ...


@dataclass(frozen=True, slots=True)
class Screen:
    """All that changes while one looks. done: what an operator did last."""

    view: View
    study: Study
    done: str = ""


class Dash:
    """What the routes share."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.door = Door(core.options.keys)
        self.desk = Desk(self.door, core.steer)
        self._studies = Studies(core.options.profile)

    async def seen(self) -> Screen:
        engines = len(self._core.pool.engines)
        stats = list((await self._core.pool.stats()).values())
        now = view(stats, max(engines - len(stats), 0))
        return Screen(now, await self._studies.of(now.policy.profile if now.policy else ""), self.desk.last)

    def rendered(self, template: str, status: int = 200, **values: Any) -> Response:
        about = {"model": self._core.preparer.facts.name, "version": __version__}
        return HTMLResponse(_template(template).render(**about, **values), status_code=status, headers=HEADERS)

    def closed(self, wrong: str = "") -> Response:
        return self.rendered("door.html.j2", 401, wrong=wrong)


def router(core: Core) -> APIRouter:
    """The entry point `draftwing.routes`."""
    routes, dash = APIRouter(prefix="/dash", include_in_schema=False), Dash(core)
    _to_look(routes, dash)
    _to_act(routes, dash)
    return routes


def _to_look(routes: APIRouter, dash: Dash) -> None:
    @routes.get("")
    async def page(request: Request) -> Response:
        if dash.door.visitor(request) is None:
            return dash.closed()
        try:
            question, wrong = parse(dict(request.query_params)), ""
        except ValueError as error:
            question, wrong = Question(), str(error)
        return dash.rendered(
            "dash.html.j2",
            400 if wrong else 200,
            screen=await dash.seen(),
            actions=ACTIONS if dash.door.locked else {},
            no_actions=NO_KEYS,
            what_if=answer(question),
            wrong=wrong,
        )

    @routes.get("/events")
    async def events(request: Request) -> Response:
        if dash.door.visitor(request) is None:
            raise HTTPException(401, NO_KEY, {"WWW-Authenticate": "Bearer"})
        return StreamingResponse(_events(dash.seen), media_type="text/event-stream", headers=HEADERS)

    @routes.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in STATIC:
            return Response(status_code=404)
        return Response(_static(name), media_type=STATIC[name], headers=HEADERS)


def _to_act(routes: APIRouter, dash: Dash) -> None:
    @routes.post("/key")
    async def key(request: Request) -> Response:
        """A key for a ticket."""
        if not of_our_own(request):
            raise HTTPException(403, ELSEWHERE)
        number = dash.door.number((await form(request)).get("key", "").strip())
        if not number:
            logger.warning("a wrong key was given under /dash (from %s)", _address(request))
            return dash.closed("This is none of this server's keys.")
        answer = RedirectResponse("/dash", status_code=303, headers=HEADERS)
        secure = request.url.scheme == "https"
        answer.set_cookie(
            COOKIE, dash.door.ticket(number), TICKET_S, path="/dash", secure=secure, httponly=True, samesite="strict"
        )
        return answer

    @routes.post("/actions")
    async def act(request: Request) -> Response:
        visitor = dash.desk.admit(request)
        done = await dash.desk.do((await form(request)).get("do", ""), visitor, _address(request))
        if visitor.ticket:
            return RedirectResponse("/dash#h-actions", status_code=303, headers=HEADERS)
        return PlainTextResponse(f"{done}\n", headers=HEADERS)


async def _events(seen: Callable[[], Awaitable[Screen]]) -> AsyncGenerator[str, None]:
    """The live pieces, whenever one has changed; a comment else, so that a client that has gone is noticed."""
    before: dict[str, str] = {}
    while True:
        now = await seen()
        pieces = {name: _piece(name, now) for name in LIVE_PIECES}
        changed = {name: html for name, html in pieces.items() if before.get(name) != html}
        yield f"data: {json.dumps(changed)}\n\n" if changed else ": nothing new\n\n"
        before = pieces
        await asyncio.sleep(PERIOD_S)


def _piece(name: str, now: Screen) -> str:
    module = _template("pieces.html.j2").module
    return str(getattr(module, name)(now))


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else "an unknown address"


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
