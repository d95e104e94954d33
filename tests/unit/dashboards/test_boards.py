"""Dashboards as code: every metric exists, the JSON is Grafana's, and what goes wrong is one line."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from draftwing.errors import ConfigError, SetupError
from draftwing_dashboards.boards import BOARDS
from draftwing_dashboards.check import check, metrics_of
from draftwing_dashboards.export import export
from draftwing_dashboards.grafana import WIDTH, Dashboard
from draftwing_dashboards.push import Grafana, push
from tests.unit.serve.fakes import make_client, make_core


def exposed() -> set[str]:
    """Names of all samples that a gateway's /metrics can show, with their kinds' suffixes."""
    core = make_core()

    async def text() -> str:
        async with make_client(core) as client:
            body = {"model": "tiny", "prompt": "x", "max_tokens": 4}
            assert (await client.post("/v1/completions", json=body)).status_code == 200
            return (await client.get("/metrics")).text

    families = list(text_string_to_metric_families(asyncio.run(text())))
    samples = {sample.name for family in families for sample in family.samples}
    declared = {f"{f.name}_total" if f.type == "counter" else f.name for f in families}
    return samples | declared


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_every_metric_of_a_dashboard_is_exported(board: Dashboard) -> None:
    known = exposed()
    for panel in board.panels:
        for query in panel.queries:
            names = metrics_of(query.expression)
            assert names, f"{panel.title} names no metric"
            assert {f"draftwing_{name}" for name in names} <= known, panel.title


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_panels_lie_beside_each_other(board: Dashboard) -> None:
    document = board.as_json()
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= WIDTH
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])


def test_export_writes_what_grafana_reads(tmp_path: Path) -> None:
    written = export(tmp_path / "grafana", "http://prometheus:9090")
    boards = [json.loads(path.read_text()) for path in written if path.suffix == ".json"]
    assert {board["uid"] for board in boards} == {board.uid for board in BOARDS}
    source = yaml.safe_load((tmp_path / "grafana/provisioning/datasources/draftwing.yaml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="can't be written"):
        export(tmp_path / "file", "http://prometheus:9090")


@dataclass
class FakeGrafana:
    """What it was sent; answers with `status` where that isn't 200."""

    status: int = 200
    folders: list[dict[str, Any]] = field(default_factory=list)
    boards: list[dict[str, Any]] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)


class _Handler(BaseHTTPRequestHandler):
    grafana: FakeGrafana

    def _answer(self, status: int, document: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def do_GET(self) -> None:
        self._answer(200 if self.grafana.folders else 404, {"message": "not found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.grafana.tokens.add(self.headers["authorization"])
        if self.grafana.status != 200:
            self._answer(self.grafana.status, {"message": "no"})
        elif self.path == "/api/folders":
            self.grafana.folders.append(body)
            self._answer(200, body)
        else:
            self.grafana.boards.append(body)
            self._answer(200, {"url": f"/d/{body['dashboard']['uid']}"})

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def grafana() -> Iterator[tuple[str, FakeGrafana]]:
    fake = FakeGrafana()
    server = HTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"grafana": fake}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", fake
    server.shutdown()
    thread.join()
    server.server_close()


def test_push_makes_the_folder_once_and_overwrites(grafana: tuple[str, FakeGrafana]) -> None:
    url, fake = grafana
    for _ in range(2):
        assert push(Grafana(url, "secret")) == [f"{url}/d/{board.uid}" for board in BOARDS]
    assert len(fake.folders) == 1
    assert all(body["overwrite"] and body["folderUid"] == fake.folders[0]["uid"] for body in fake.boards)
    assert fake.tokens == {"Bearer secret"}


@pytest.mark.parametrize("status", [401, 403, 412, 500])
def test_grafanas_refusal_is_one_line(grafana: tuple[str, FakeGrafana], status: int) -> None:
    url, fake = grafana
    fake.status = status
    with pytest.raises(SetupError, match=f"answered {status}") as raised:
        push(Grafana(url, "secret"))
    assert len(str(raised.value).splitlines()) == 1


def test_nobody_there() -> None:
    with pytest.raises(SetupError, match="can't be reached"):
        push(Grafana("http://127.0.0.1:9", "secret"))
    with pytest.raises(ConfigError, match="expected http://host:3000"):
        push(Grafana("grafana", "secret"))
    with pytest.raises(SetupError, match="can't be reached"):
        check("http://127.0.0.1:9")
