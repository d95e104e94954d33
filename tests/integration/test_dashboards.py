"""Every panel against a real Prometheus that scrapes a real server."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest
import yaml

from draftwing.errors import SetupError
from draftwing_dashboards.check import check
from tests.conftest import require
from tests.integration.serve_tools import eventually, free_port, make_model, serve_command

PROMPT = "def add(a, b):\n    return a + b\n\ndef add(a, b):\n    "
SCRAPE_S, WINDOW = 1, "10s"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`draftwing serve` with a tiny model; gives its host:port."""
    model, port = make_model(tmp_path_factory.mktemp("model") / "tiny"), free_port()
    process = serve_command(
        "--model",
        str(model),
        "--port",
        str(port),
        "--drafter",
        "ngram",
        "--policy",
        "adaptive",
        "--set",
        "cache.tokens=4096",
        "--json",
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the server did not start"
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def prometheus(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    scrape = {"job_name": "draftwing", "static_configs": [{"targets": [server]}]}
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": f"{SCRAPE_S}s"}, "scrape_configs": [scrape]}))
    port = free_port()
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def test_every_panel_shows_data(server: str, prometheus: str) -> None:
    def problems() -> list[str]:
        """After more requests: a rate needs counters that move."""
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
        for _ in range(2):
            assert httpx.post(f"http://{server}/v1/completions", json=body, timeout=60).status_code == 200
            time.sleep(SCRAPE_S)
        try:
            found = check(prometheus, window=WINDOW)
        except SetupError as error:  # Prometheus is still starting
            return [str(error)]
        assert len(found) > 30
        wrong = [f"{each.dashboard}: {each.panel}: {each.problem}" for each in found if each.problem]
        return wrong + [f"{each.panel}: no data after requests" for each in found if not each.series]

    seen: list[list[str]] = []

    def fine() -> bool:
        seen.append(problems())
        return not seen[-1]

    try:
        eventually(fine, within_s=120)
    except AssertionError:
        pytest.fail("\n".join(seen[-1]))


def test_a_metric_that_is_gone_is_a_problem(prometheus: str) -> None:
    eventually(lambda: _up(prometheus), within_s=30)
    wrong = [each for each in check(prometheus, prefix="other_") if each.problem]
    assert wrong
    assert all("no metric other_" in each.problem for each in wrong)


def _up(prometheus: str) -> bool:
    try:
        return httpx.get(f"{prometheus}/-/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
