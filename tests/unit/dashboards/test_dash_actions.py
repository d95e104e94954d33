"""Who may look at /dash and act on it, what reaches the engines, and that each refusal is one clear line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from draftwing.errors import DraftwingError
from draftwing_dashboards.web.door import COOKIE, Door
from draftwing_dashboards.web.router import router
from draftwing_serve.http_api import make_app
from tests.unit.serve.fakes import make_client, make_core

KEYS = ("first key", "other, köy")
OURS = {"sec-fetch-site": "same-origin"}
PAUSE = {"do": "pause"}


class Engines:
    """Remembers what it was asked, and answers as told."""

    def __init__(self, *answers: str, error: str = "") -> None:
        self.answers = list(answers)
        self.error = error
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, action: str, reason: str) -> list[str]:
        self.asked.append((action, reason))
        if self.error:
            raise DraftwingError(self.error)
        return self.answers


def browse(
    work: Callable[[httpx.AsyncClient], Awaitable[Any]], engines: Engines | None = None, keys: tuple[str, ...] = KEYS
) -> Any:
    async def run() -> Any:
        core = make_core(keys=keys)
        core.steer = engines or Engines("")
        app = make_app(core)
        if not any(getattr(route, "path", "") == "/dash" for route in app.routes):
            app.include_router(router(core))
        await core.pool.refresh()
        async with make_client(core, app) as client:
            return await asyncio.wait_for(work(client), 20)

    return asyncio.run(run())


def post(path: str, data: dict[str, str], *, cookie: str = "", engines: Engines | None = None, **more: Any) -> Any:
    headers = more.pop("headers", {}) | ({"cookie": f"{COOKIE}={cookie}"} if cookie else {})
    return browse(lambda client: client.post(path, data=data, headers=headers), engines, **more)


def message(answer: httpx.Response) -> str:
    text: str = answer.json()["error"]["message"]
    assert "\n" not in text
    return text


def test_a_key_opens_the_page() -> None:
    async def visit(client: httpx.AsyncClient) -> None:
        shut = await client.get("/dash")
        assert shut.status_code == 401
        assert 'type="password"' in shut.text
        assert "plain decoding" not in shut.text
        assert (await client.get("/dash/static/dash.css")).status_code == 200
        assert (await client.get("/dash/events")).status_code == 401
        wrong = await client.post("/dash/key", data={"key": "no key"}, headers=OURS)
        assert wrong.status_code == 401
        assert "none of this server" in wrong.text
        assert COOKIE not in wrong.cookies
        right = await client.post("/dash/key", data={"key": f" {KEYS[1]} "}, headers=OURS)
        assert (right.status_code, right.headers["location"]) == (303, "/dash")
        for part in ("HttpOnly", "SameSite=strict", "Path=/dash"):
            assert part in right.headers["set-cookie"]
        assert KEYS[1] not in right.headers["set-cookie"]
        assert "Secure" not in right.headers["set-cookie"]
        client.cookies.set(COOKIE, right.cookies[COOKIE], path="/dash")
        page = await client.get("/dash")
        assert page.status_code == 200
        assert 'value="pause"' in page.text
        assert (await client.get("/v1/models")).status_code == 401, "the ticket opens nothing else"

    browse(visit)


def test_a_key_in_the_header_is_enough() -> None:
    headers = {"authorization": f"Bearer {KEYS[0]}"}
    page = browse(lambda client: client.get("/dash", headers=headers))
    assert page.status_code == 200


def test_an_action_reaches_every_engine_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    engines = Engines("", "", "the engine is still loading")
    with caplog.at_level(logging.INFO, "draftwing_dashboards"):
        done = post("/dash/actions", PAUSE, headers={"authorization": f"Bearer {KEYS[0]}"}, engines=engines)
    assert done.status_code == 200
    assert "2 of 3 engines: done; 1 of 3 engines: the engine is still loading" in done.text
    ((action, reason),) = engines.asked
    assert action == "pause"
    assert reason.startswith("paused under /dash at 20")
    assert reason.endswith("by key 1")
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("draftwing_dashboards")]
    assert "by key 1" in line
    assert "127.0.0.1" in line
    assert KEYS[0] not in line


def test_the_page_says_what_was_done() -> None:
    async def visit(client: httpx.AsyncClient) -> None:
        client.cookies.set(COOKIE, Door(KEYS).ticket(2), path="/dash")
        done = await client.post("/dash/actions", data={"do": "look"}, headers=OURS)
        assert (done.status_code, done.headers["location"]) == (303, "/dash#h-actions")
        page = await client.get("/dash")
        assert "by key 2: 1 of 1 engine: &lt;b&gt; is live" in page.text

    browse(visit, Engines("<b> is live"))


@pytest.mark.parametrize(
    ("engines", "said"),
    [(Engines(), "no engine answered"), (Engines(error="not every replica took it"), "not every replica took it")],
)
def test_engines_that_do_not_answer_are_told_of(engines: Engines, said: str) -> None:
    done = post("/dash/actions", PAUSE, headers={"authorization": f"Bearer {KEYS[0]}"}, engines=engines)
    assert done.text.rstrip().endswith(said)


def test_without_keys_nobody_acts() -> None:
    engines = Engines("")
    refused = post("/dash/actions", PAUSE, keys=(), headers=OURS, engines=engines)
    assert refused.status_code == 403
    assert "set server.keys" in message(refused)
    page = browse(lambda client: client.get("/dash"), keys=())
    assert "set server.keys" in page.text
    assert "<button name" not in page.text
    assert engines.asked == []


@pytest.mark.parametrize(
    ("headers", "cookie", "status", "said"),
    [
        ({}, "", 401, "This needs a key"),
        ({"authorization": "Bearer no key"}, "", 401, "This needs a key"),
        ({"authorization": f"Basic {KEYS[0]}"}, "", 401, "This needs a key"),
        ({}, "ticket", 403, "another site"),
        ({"sec-fetch-site": "cross-site", "origin": "http://test"}, "ticket", 403, "another site"),
        ({"sec-fetch-site": "same-site"}, "ticket", 403, "another site"),
        ({"origin": "http://evil"}, "ticket", 403, "another site"),
        ({"origin": "null"}, "ticket", 403, "another site"),
    ],
)
def test_refusals_are_one_line_and_reach_nobody(headers: dict[str, str], cookie: str, status: int, said: str) -> None:
    engines = Engines("")
    ticket = Door(KEYS).ticket(1) if cookie else ""
    refused = post("/dash/actions", PAUSE, headers=headers, cookie=ticket, engines=engines)
    assert refused.status_code == status
    assert said in message(refused)
    assert engines.asked == []


def test_our_own_pages_may_act_where_browsers_send_only_the_origin() -> None:
    engines = Engines("")
    done = post("/dash/actions", PAUSE, headers={"origin": "http://test"}, cookie=Door(KEYS).ticket(1), engines=engines)
    assert done.status_code == 303
    assert len(engines.asked) == 1


@pytest.mark.parametrize("ticket", ["", ".", "1", "1.2", "0.9999999999.x", "3.9999999999.x", "²." + "9" * 9, "1." * 99])
def test_a_made_up_ticket_lets_nobody_in(ticket: str) -> None:
    page = browse(lambda client: client.get("/dash", headers={b"cookie": f"{COOKIE}={ticket}".encode()}))
    assert page.status_code == 401


def test_a_ticket_is_its_keys_alone_and_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(KEYS)
    mine = door.ticket(1)
    assert door._holder(mine) == 1
    number, expires, mac = mine.split(".")
    assert door._holder(f"2.{expires}.{mac}") == 0
    assert door._holder(f"{number}.{int(expires) + 1}.{mac}") == 0
    assert Door(KEYS[1:])._holder(mine) == 0, "the key was taken away"
    monkeypatch.setattr("draftwing_dashboards.web.door.time.time", lambda: float(expires) + 1)
    assert door._holder(mine) == 0


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        ({"data": {"do": "stop"}}, 400, "do is 'stop'; expected pause, resume, look"),
        ({"data": {}}, 415, "content-type is ''"),
        ({"json": {"do": "pause"}}, 415, "expected application/x-www-form-urlencoded"),
        ({"data": {"do": "x" * 5000}}, 413, "longer than 4096 bytes"),
        ({"data": {str(i): "x" for i in range(20)}}, 400, "at most 16 fields"),
    ],
)
def test_a_wrong_form_is_named(request_: dict[str, Any], status: int, said: str) -> None:
    headers = {"authorization": f"Bearer {KEYS[0]}"}
    refused = browse(lambda client: client.post("/dash/actions", headers=headers, **request_))
    assert refused.status_code == status
    assert said in message(refused)


def test_actions_are_posted_only() -> None:
    async def visit(client: httpx.AsyncClient) -> None:
        for path in ("/dash/actions?do=pause", "/dash/key?key=x"):
            assert (await client.get(path)).status_code == 405

    browse(visit)
