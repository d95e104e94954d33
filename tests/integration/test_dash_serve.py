"""Actions under /dash on real Ray: they reach the replica's engine, and the one that takes its place keeps to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from draftwing.config import Config
from tests.integration.serve_tools import eventually, free_port, make_model

KEY = "a key of this test"
BEARER = {"authorization": f"Bearer {KEY}"}
ASKED = {"prompt": "1 + 1 = 2; 1 + 1 = 2; 1 + 1 =", "max_tokens": 60, "temperature": 0, "ignore_eos": True}


@contextmanager
def served(model: Path) -> Iterator[str]:
    from ray import serve

    from draftwing_serve import board
    from draftwing_serve.app import APPLICATION, build
    from draftwing_serve.ray_edge import shutdown_serve
    from draftwing_serve.steering import pause_of

    port = free_port()
    config = Config.model_validate(
        {
            "model": {"path": str(model), "name": "tiny", "cpu_threads": 1, "compile": False},
            "drafters": [{"method": "ngram"}],
            "policy": {"mode": "fixed:k=4"},
            "cache": {"tokens": 4096},
            "limits": {"sequences": 4},
            "server": {"port": port, "keys": [KEY]},
        }
    )
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(build(config), name=APPLICATION, route_prefix="/")
        yield f"http://127.0.0.1:{port}"
    finally:
        board.clear(pause_of(APPLICATION))
        shutdown_serve()


def sampled(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics", headers=BEARER, timeout=30).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def decoded(url: str) -> tuple[str, float]:
    """The text, and the draft nodes that were verified for it."""
    before = sampled(url, "draftwing_spec_decode_num_draft_tokens_total")
    answer = httpx.post(f"{url}/v1/completions", json=ASKED, headers=BEARER, timeout=120)
    text: str = answer.json()["choices"][0]["text"]
    return text, sampled(url, "draftwing_spec_decode_num_draft_tokens_total") - before


def act(url: str, action: str) -> str:
    done = httpx.post(f"{url}/dash/actions", data={"do": action}, headers=BEARER, timeout=60)
    assert done.status_code == 200, done.text
    return done.text


@pytest.mark.slow
def test_a_pause_outlives_the_replica(ray_session: str, tmp_path: Path) -> None:
    with served(make_model(tmp_path / "tiny")) as url:
        expected, drafted = decoded(url)
        assert drafted > 10
        assert "1 of 1 engine: done" in act(url, "pause")
        eventually(lambda: sampled(url, "draftwing_policy_paused") == 1, within_s=30)
        assert decoded(url) == (expected, 0)
        assert "no profile is in use" in act(url, "look")
        (rank,) = [
            each for each in psutil.Process().children(recursive=True) if "RankActor" in " ".join(each.cmdline())
        ]
        os.kill(rank.pid, signal.SIGKILL)

        def again() -> bool:
            """Another engine answers."""
            return httpx.get(f"{url}/health", timeout=30).status_code == 200 and not rank.is_running()

        eventually(again, within_s=180)
        eventually(lambda: sampled(url, "draftwing_policy_paused") == 1, within_s=60)
        assert decoded(url) == (expected, 0)
        assert "1 of 1 engine: done" in act(url, "resume")
        eventually(lambda: sampled(url, "draftwing_policy_paused") == 0, within_s=30)
        text, drafted = decoded(url)
        assert text == expected
        assert drafted > 10
