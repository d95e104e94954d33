"""`draftwing tune` as a user runs it, on a small real model: stopped by Ctrl-C, gone on with, and its profile used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftwing.policy.artifact import read_artifact
from draftwing_tuner.history import study_of
from tests.conftest import ROOT
from tests.tiny_models import golden

CLI = [sys.executable, "-m", "draftwing.cli"]
CONFIG = """
model: {{path: {path}, dtype: float32, device: cpu, cpu_threads: 1, compile: false}}
drafters: [{{name: lookup, method: ngram}}]
cache: {{tokens: 4096}}
limits: {{sequences: 2, context: 256}}
"""


def command(folder: Path) -> list[str]:
    (folder / "draftwing.yaml").write_text(CONFIG.format(path=golden("llama8")))
    flags = ["-c", "draftwing.yaml", "--budget", "20s", "--max-tokens", "16", "--trials", "4", "--out", "out", "--json"]
    return [*CLI, "tune", *flags]


@pytest.mark.slow
def test_tune_survives_a_stop_and_publishes(tmp_path: Path) -> None:
    paths = os.pathsep.join(str(ROOT / root) for root in ("platform", "deployments", "tuner"))
    environment = os.environ | {"PYTHONPATH": paths}
    samples = tmp_path / "out" / "measure.jsonl"
    first = subprocess.Popen(
        command(tmp_path), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and not (samples.exists() and samples.stat().st_size > 5_000):
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    out, _ = first.communicate(timeout=240)
    assert first.returncode == 130
    assert out == ""
    before = samples.read_text()

    second = subprocess.run(
        command(tmp_path), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert second.returncode == 0, second.stderr
    assert samples.read_text().startswith(before[: before.rfind("\n") + 1])
    found = json.loads(second.stdout)
    assert found["schema"] == 1
    assert found["cells"] >= 8
    assert {row["batch"] for row in found["schedule"]} == {1, 2}
    assert {entry["concurrency"] for entry in found["validated"]} == {1, 2}
    assert all(entry["rounds"] >= 3 for entry in found["validated"])
    assert Path(tmp_path / found["report"]).is_file()
    assert "draftwing serve -c draftwing.yaml" in found["command"]
    artifact = read_artifact(str(tmp_path / found["profile"]), found["key"])
    assert artifact.digest == found["digest"]
    assert len(artifact.costs) == found["cells"]
    assert artifact.curves.verify
    assert artifact.manifest.about["mode"] == found["mode"]
    assert {(row.batch, row.trial) for row in study_of(artifact)} >= {(b, n) for b in (1, 2) for n in range(4)}

    again = subprocess.run(
        [*CLI, "simulate", "--trace", "out/held-out", "--profile", found["profile"], "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    replayed = {entry["setting"]: entry["overall"] for entry in found["replayed"]}
    for entry in json.loads(again.stdout)["settings"]:
        assert entry["overall"] == pytest.approx(replayed[entry["name"]]), entry["name"]
