"""A drafter replica on real Ray: its drafts are used, its death costs only speed, and another takes its place."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import openai
import psutil
import pytest

from tests.integration.serve_tools import eventually, free_port, make_model, metric

PROMPT = "def add(a, b):\n    return a + b\n\ndef add(a, b):\n    "
WAIT_S = 90


@pytest.fixture(params=["colocated", "alternate"])
def url(ray_session: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    from ray import serve

    from draftwing.config import Config
    from draftwing_serve.app import APPLICATION, build
    from draftwing_serve.ray_edge import shutdown_serve

    model, port = make_model(tmp_path_factory.mktemp("model") / "tiny"), free_port()
    config = Config.model_validate(
        {
            "model": {"path": str(model), "name": "tiny", "cpu_threads": 1},
            "drafters": [{"method": "ngram", "placement": {"mode": request.param, "deadline_ms": 2000}}],
            "policy": {"mode": "fixed:k=4"},
            "cache": {"tokens": 8192},
            "limits": {"sequences": 4},
            "server": {"port": port},
        }
    )
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    serve.run(build(config), name=APPLICATION, route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    shutdown_serve()


def drafters() -> list[psutil.Process]:
    """Serve names a replica's process after its application and deployment."""
    return [each for each in psutil.process_iter() if "draftwing:drafter" in " ".join(_command(each))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.slow
def test_a_killed_drafter_changes_no_token(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)

    def stream(speculation: str, kill_after: int = 0) -> list[int]:
        extra: dict[str, Any] = {"speculation": speculation, "return_token_ids": True, "ignore_eos": True}
        found: list[int] = []
        chunks = client.completions.create(
            model="tiny", prompt=PROMPT, max_tokens=200, temperature=0, stream=True, extra_body=extra
        )
        for number, chunk in enumerate(chunks, 1):
            found += chunk.choices[0].token_ids if chunk.choices else []  # type: ignore[attr-defined]
            if number == kill_after:
                (process,) = drafters()
                os.kill(process.pid, signal.SIGKILL)
        return found

    def drafts() -> float:
        return metric(url, "draftwing_spec_decode_num_drafts_total")

    def drafting() -> bool:
        before = drafts()
        assert stream("on") == plain
        return drafts() > before

    plain = stream("off")
    assert len(plain) == 200
    assert drafts() == 0
    eventually(drafting, within_s=WAIT_S)
    assert stream("on", kill_after=5) == plain
    eventually(drafting, within_s=WAIT_S)
