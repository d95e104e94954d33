"""`draftwing serve` as a process: what it refuses before anything starts, and that nothing outlives it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import torch

from tests.integration.serve_tools import eventually, free_port, make_model, serve_command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on, also for those who would share it."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def refused(*arguments: str, ray: str = "") -> tuple[int, str]:
    """Exit code and the error line of a command that must give up at once. ray: RAY_ADDRESS."""
    process = serve_command(*arguments, RAY_ADDRESS=ray)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return process.returncode, lines[0]


def test_port_in_use(model: Path, taken: int) -> None:
    code, line = refused("--model", str(model), "--port", str(taken))
    assert code == 3
    assert f"port {taken} on 127.0.0.1 can't be used" in line
    assert "--port" in line


def test_missing_model() -> None:
    code, line = refused("--model", "/no/such/model")
    assert code == 2
    assert line.startswith("error: model.path /no/such/model does not exist")


def test_damaged_model(model: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(model, damaged)
    weights = damaged / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    code, line = refused("--model", str(damaged), "--port", str(free_port()))
    assert code == 2
    assert str(weights) in line


def test_a_dtype_or_device_that_is_not_there(model: Path) -> None:
    """Known before Ray starts; the rank would find it too, but later."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device, so asking for one is no mistake here")
    code, line = refused("--model", str(model), "--port", str(free_port()), "--device", "cuda")
    assert code == 3
    assert "model.device is cuda" in line


def test_hybrid_target(model: Path, tmp_path: Path) -> None:
    hybrid = tmp_path / "hybrid"
    shutil.copytree(model, hybrid)
    config = json.loads((hybrid / "config.json").read_text())
    (hybrid / "config.json").write_text(json.dumps(config | {"model_type": "jamba"}))
    code, line = refused("--model", str(hybrid), "--port", str(free_port()))
    assert code == 2
    assert "hybrid" in line


def test_unreachable_ray(model: Path) -> None:
    code, line = refused("--model", str(model), "--port", str(free_port()), ray=f"127.0.0.1:{free_port()}")
    assert code == 3
    assert "RAY_ADDRESS" in line


@pytest.fixture
def sessions() -> Iterator[Path]:
    """Where a Ray of the command's own keeps its files; short, for the sockets in it."""
    folder = Path(tempfile.mkdtemp(prefix="dw-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_refused_by_the_rank(model: Path, sessions: Path) -> None:
    """An error that only the rank can find is one clear line too, and stops everything."""
    arguments = ("--model", str(model), "--port", str(free_port()), "--set", "cache.tokens=2000000000")
    process = serve_command(*arguments, TMPDIR=str(sessions))
    try:
        _, err = process.communicate(timeout=180)
    finally:
        process.kill()
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert process.returncode == 3
    assert "lower cache.tokens" in line
    assert list(sessions.glob("dw-*")) == []


@pytest.mark.parametrize(
    ("number", "code", "group"),
    [
        pytest.param(signal.SIGINT, 130, False, id="ctrl-c"),
        pytest.param(signal.SIGTERM, 0, True, id="term-group", marks=pytest.mark.slow),
    ],
)
def test_starts_serves_and_leaves_nothing(
    model: Path, sessions: Path, number: signal.Signals, code: int, group: bool
) -> None:
    arguments = ("--model", model.name, "--drafter", "ngram", "--port", str(port := free_port()), "--json")
    process = serve_command(*arguments, cwd=model.parent, TMPDIR=str(sessions))
    try:
        assert process.stdout is not None
        announced = json.loads(process.stdout.readline())
        assert announced["url"] == f"http://127.0.0.1:{port}"
        answer = httpx.post(f"{announced['url']}/v1/completions", json={"prompt": "hello", "max_tokens": 4}, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 4
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) > 4
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        _, err = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == code, err
    assert "Traceback" not in err
    eventually(lambda: not any(each.is_running() and each.status() != "zombie" for each in started), within_s=5)
    assert list(sessions.glob("dw-*")) == []
