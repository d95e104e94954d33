"""Replicas of two ranks on real Ray: the tokens of one rank, a rank's death, and settings that can't be."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from draftwing.config import Config
from draftwing.core import Request, SamplingParams
from draftwing.engine.build import build_local
from draftwing.testing.run_engine import run_to_end
from tests.integration.serve_tools import eventually, free_port, make_model, metric
from tests.tiny_models import golden

PROMPT = "def add(a, b):\n    return a + b\n\ndef add(a, b):\n    "
ASKED = {"prompt": PROMPT, "max_tokens": 300, "seed": 3, "temperature": 0.8, "ignore_eos": True}


def settings(model: Path, port: int, **parallel: int) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(model), "name": "tiny", "cpu_threads": 1, "compile": False},
            "parallel": parallel,
            "drafters": [{"method": "ngram"}],
            "policy": {"mode": "fixed:tree=3x2x1"},
            "cache": {"tokens": 4096},
            "limits": {"sequences": 4},
            "server": {"port": port},
        }
    )


@contextmanager
def served(model: Path, **parallel: int) -> Iterator[str]:
    from ray import serve

    from draftwing_serve.app import APPLICATION, build
    from draftwing_serve.ray_edge import shutdown_serve

    port = free_port()
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(build(settings(model, port, **parallel)), name=APPLICATION, route_prefix="/")
        yield f"http://127.0.0.1:{port}"
    finally:
        shutdown_serve()


def one_rank(model: Path) -> str:
    """What a single rank in this process gives to the same request."""
    params = SamplingParams(max_tokens=300, seed=3, temperature=0.8, ignore_eos=True)
    engine, tokenizer = build_local(settings(model, 1))
    assert tokenizer is not None
    return run_to_end(engine, [Request("x", tokenizer.encode(PROMPT), params)])["x"].text


def ranks() -> list[psutil.Process]:
    """Processes of this Ray's rank actors, oldest first."""
    children = psutil.Process().children(recursive=True)
    return sorted((child for child in children if is_rank(child)), key=lambda process: process.create_time())


def is_rank(process: psutil.Process) -> bool:
    try:
        return "ray::RankActor" in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(processes: list[psutil.Process]) -> bool:
    return not {process.pid for process in processes} & {process.pid for process in ranks()}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "axis"), [("llama8", "tensor"), ("mixtral3", "expert")])
def test_a_replica_of_two_ranks(ray_session: str, name: str, axis: str, tmp_path: Path) -> None:
    """It gives one rank's text; either rank's death costs no token of a stream; and then it serves again."""
    model = make_model(tmp_path / "tiny", golden(name))
    with served(model, **{axis: 2}) as url:
        expected = httpx.post(f"{url}/v1/completions", json=ASKED, timeout=120).json()["choices"][0]["text"]
        assert expected == one_rank(model)
        for victim in (1, 0):
            before = ranks()
            assert len(before) == 2
            with httpx.stream("POST", f"{url}/v1/completions", json=ASKED | {"stream": True}, timeout=180) as answer:
                lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
                chunks = [json.loads(next(lines)[6:])]
                os.kill(before[victim].pid, signal.SIGKILL)
                chunks += [json.loads(line[6:]) for line in lines]
            assert "error" not in chunks[-1]
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
            again = httpx.post(f"{url}/v1/completions", json=ASKED, timeout=120).json()
            assert again["choices"][0]["text"] == expected
            eventually(partial(gone, before), within_s=60)
        assert metric(url, "draftwing_replicas_lost_total") == 2


@pytest.mark.slow
def test_an_idle_rank_that_dies_is_replaced(ray_session: str, tmp_path: Path) -> None:
    """Nobody asks for anything, and still the death of a rank that only follows is found out."""
    model = make_model(tmp_path / "tiny")
    with served(model, tensor=2) as url:
        before = ranks()
        before[1].kill()
        seconds = eventually(lambda: gone(before) and len(ranks()) == 2, within_s=180)
        print(f"a new pair of ranks after {seconds:.1f} s")
        answer = httpx.post(f"{url}/v1/completions", json=ASKED, timeout=120)
        assert answer.status_code == 200
