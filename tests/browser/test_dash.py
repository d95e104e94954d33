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
from tests.browser.chromium import Page, chromium
from tests.conftest import ROOT
from tests.integration.serve_tools import eventually, free_port
from tests.unit.serve.fakes import FakeEngine, make_core

WAIT_S = 30
SHOTS = ROOT / "build" / "screenshots"


class Changing(FakeEngine):
    """Reports the ratio that the test sets."""

    ratio = 1.25

    async def stats(self, timeout_s: float = 1.0) -> RankStats:
        stats = await super().stats(timeout_s)
        schedule = [(1, 6, 1.9), (8, 3, 1.3), (64, 0, 1.0)]
        stats.policy = PolicyStatus(
            "adaptive", "lookup", "k=4", "most tokens a second", ratio=self.ratio, half_width=0.04, schedule=schedule
        )
        return stats


@pytest.fixture
def engine() -> Changing:
    return Changing()


@pytest.fixture
def url(engine: Changing) -> Iterator[str]:
    core = make_core(engine)
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
    SHOTS.mkdir(parents=True, exist_ok=True)
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
