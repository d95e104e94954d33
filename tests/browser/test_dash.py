"""The page under /dash in a real browser: live, obeying its own content policy, and without a mouse."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from draftwing.core import PolicyStatus
from draftwing.parallel.messages import RankStats
from draftwing_dashboards.web.router import router
from draftwing_serve.http_api import make_app
from draftwing_serve.steering import Action
from tests.browser.chromium import Page, chromium
from tests.conftest import ROOT
from tests.integration.serve_tools import eventually, free_port
from tests.unit.dashboards.test_study import published
from tests.unit.serve.fakes import FakeEngine, make_core

WAIT_S = 30
SHOTS = ROOT / "build" / "screenshots"


KEY = "a key for the page"


class Changing(FakeEngine):
    """Reports the ratio that the test sets, and a pause that an operator asked for."""

    ratio = 1.25
    pause = profile = ""

    async def steer(self, action: Action, reason: str) -> list[str]:
        if action == "look":
            return ["profile ab12 is live, and none is newer"]
        self.pause = reason if action == "pause" else ""
        return [""]

    async def stats(self, timeout_s: float = 1.0) -> RankStats:
        stats = await super().stats(timeout_s)
        schedule = [(1, 6, 1.9), (8, 3, 1.3), (64, 0, 1.0)]
        stats.policy = PolicyStatus(
            "adaptive",
            "lookup",
            "k=4",
            self.pause or "most tokens a second",
            paused=bool(self.pause),
            ratio=self.ratio,
            half_width=0.04,
            profile=self.profile,
            schedule=schedule,
        )
        return stats


@pytest.fixture
def engine() -> Changing:
    return Changing()


@pytest.fixture
def url(engine: Changing, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """With a parameter of True: a server that asks for keys, and has the study of a profile."""
    core = make_core(engine)
    if getattr(request, "param", False):
        core = make_core(engine, keys=(KEY,), profile=str(tmp_path))
        core.steer = engine.steer
        engine.profile = published(tmp_path)
    app = make_app(core)
    if not any(getattr(route, "path", "") == "/dash" for route in app.routes):
        app.include_router(router(core))
    port = free_port()
    settings = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(settings)

    def serve() -> None:
        server.run()

    thread = threading.Thread(target=serve)
    thread.start()
    eventually(lambda: server.started, within_s=WAIT_S)
    url = f"http://127.0.0.1:{port}"
    assert httpx.get(f"{url}/health", timeout=WAIT_S).status_code == 200  # finds the engine
    yield url
    server.should_exit = True
    thread.join(WAIT_S)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    SHOTS.mkdir(parents=True, exist_ok=True)
    with chromium(tmp_path / "profile") as page:
        yield page


def shows(page: Page, text: str, where: str = "body") -> None:
    script = f"document.querySelector({where!r})?.innerText ?? ''"
    eventually(lambda: text in (page.value(script) or ""), within_s=WAIT_S)


def test_the_page(url: str, engine: Changing, page: Page) -> None:
    page.open(f"{url}/dash")
    shows(page, "1.25x plain decoding", "#headline")
    shows(page, "live", "#link")
    engine.ratio = 0.75
    shows(page, "0.75x plain decoding", "#headline")
    assert page.value("document.querySelector('#headline .bad') !== null")
    page.screenshot(SHOTS / "dash.png")
    wide = page.value("document.documentElement.scrollWidth <= window.innerWidth")
    page.value("document.querySelector('input[name=alpha]').focus()")
    for field in ("alpha", "k", "draft", "row"):
        assert page.value("document.activeElement.name") == field
        if field == "k":
            page.value("document.activeElement.select()")
            page.type("9")
        page.key("Tab")
    page.key("Enter")
    shows(page, "3.24 tokens a verify", "#what-if")
    assert "k=9" in page.value("location.search")
    assert wide
    assert page.messages == []


def test_the_policy_refuses_what_is_injected(url: str, page: Page) -> None:
    page.open(f"{url}/dash")
    shows(page, "live", "#link")
    page.value("const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)")
    page.value("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 1\">')")
    eventually(lambda: bool(page.messages) or page.value("window.ran") == 1, within_s=WAIT_S)
    assert page.value("window.ran") is None
    assert "Content Security Policy" in " ".join(page.messages)


def cut_off(page: Page, width: int) -> list[str]:
    """What reaches out of its section or of the window, at this width of it; and the first answers, below its end."""
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    outside = """[...document.querySelectorAll('section *')].filter(e =>
        e.getBoundingClientRect().right > e.closest('section').getBoundingClientRect().right).map(e => e.outerHTML)"""
    below = """['headline', 'problems'].filter(name =>
        document.getElementById(name).getBoundingClientRect().bottom > window.innerHeight)"""
    found: list[str] = page.value(outside) + page.value(below)
    wide = page.value("document.documentElement.scrollWidth") > width
    return found + ["the window"] * wide


def enter(page: Page) -> None:
    """Press the key, and wait for the document that it brings."""
    page.value("window.before = 1")
    page.key("Enter")
    eventually(lambda: page.value("window.before === undefined && document.readyState") == "complete", within_s=WAIT_S)


def press(page: Page, action: str) -> None:
    """By keyboard."""
    page.value(f"document.querySelector('button[value={action}]').focus()")
    enter(page)


@pytest.mark.parametrize("url", [True], indirect=True)
def test_a_key_and_actions_without_a_mouse(url: str, engine: Changing, page: Page) -> None:
    page.open(f"{url}/dash")
    shows(page, "This server asks for a key")
    for key, said in (("no key of it", "none of this server's keys"), (KEY, "1.25x plain decoding")):
        eventually(lambda: page.value("document.activeElement.name") == "key", within_s=WAIT_S)
        page.type(key)
        enter(page)
        shows(page, said)
    shows(page, "live", "#link")
    assert page.value("document.querySelectorAll('#study polyline').length") == 2
    for width in (1200, 800, 400):
        assert cut_off(page, width) == []
        page.screenshot(SHOTS / f"dash-{width}.png")
    press(page, "pause")
    shows(page, "Speculation is paused", "#headline")
    shows(page, "by key 1: 1 of 1 engine: done", "#done")
    assert engine.pause.startswith("paused under /dash at")
    press(page, "look")
    shows(page, "ab12 is live, and none is newer", "#done")
    press(page, "resume")
    shows(page, "1.25x plain decoding", "#headline")
    assert engine.pause == ""
    assert page.value("document.cookie") == "", "no script reads the ticket"
    assert "Content Security Policy" not in " ".join(page.messages)
