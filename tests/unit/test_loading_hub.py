"""Models by hub id, against a stand-in hub on loopback."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftwing.checkpoints import download
from draftwing.checkpoints.hub import resolve_model
from draftwing.checkpoints.model_folder import ModelFolder, open_folder
from draftwing.config_models import ModelConfig
from draftwing.errors import ConfigError, DraftwingError, SetupError
from tests.fake_hub import FakeHub, serve_hub
from tests.tiny_models import golden

NAME = "acme/tiny"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with serve_hub() as server:
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        yield server


def find(path: str = NAME, lines: list[str] | None = None, **more: Any) -> ModelFolder:
    return resolve_model(ModelConfig(path=path, **more), (lines if lines is not None else []).append)


def refused(error: type[DraftwingError], *parts: str, path: str = NAME, **more: Any) -> None:
    started = time.monotonic()
    with pytest.raises(error) as caught:
        find(path, **more)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message
    assert time.monotonic() - started < 10


def test_download_once_then_from_the_cache(hub: FakeHub, tmp_path: Path) -> None:
    sha = hub.add(NAME, golden("llama8"))
    lines: list[str] = []
    first = find(lines=lines)
    assert first.revision == sha
    assert first.path.is_relative_to(tmp_path / "hf" / "hub")
    assert first.digest == open_folder(golden("llama8"), source="local").digest
    assert NAME in lines[0]
    assert sha[:8] in lines[0]
    hub.requests.clear()
    assert find() == first
    assert not [path for _, path in hub.requests if "/resolve/" in path]


def test_other_copies_of_the_weights_are_not_downloaded(hub: FakeHub) -> None:
    hub.add(NAME, golden("llama8"))
    files = hub.repos[NAME].commits[hub.repos[NAME].refs["main"]]
    extra = dict.fromkeys(("pytorch_model.bin", "consolidated.safetensors", "onnx/model.json", "setup.py"), b"x")
    hub.commit(NAME, {**files, **extra})
    assert {path.name for path in find().path.iterdir()} == set(files)


def test_every_file_is_of_the_revision_asked_for(hub: FakeHub) -> None:
    old = hub.add(NAME, golden("llama8"))
    hub.repos[NAME].refs["v1"] = old
    new = hub.commit(NAME, {path.name: path.read_bytes() for path in golden("qwen3_8").iterdir()})
    assert find(revision="v1").revision == old
    used = {path.split("/")[4] for _, path in hub.requests if "/resolve/" in path}
    assert used == {old}
    assert find().revision == new
    assert find(revision=old).digest == open_folder(golden("llama8"), source="local").digest


@pytest.mark.parametrize("how", ["setting", "variable"])
def test_offline_after_one_download(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    hub.add(NAME, golden("llama8"))
    online = find()
    hub.requests.clear()
    if how == "variable":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find(offline=how == "setting") == online
    assert not hub.requests


def test_offline_with_nothing_cached(hub: FakeHub) -> None:
    hub.add(NAME, golden("llama8"))
    refused(SetupError, "offline mode is on", NAME, "hub reachable", offline=True)
    assert not hub.requests


def test_cache_dir_is_honoured(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, golden("llama8"))
    assert find(cache_dir=str(tmp_path / "mine")).path.is_relative_to(tmp_path / "mine")


def test_unreachable_hub_uses_the_cache_and_says_so(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, golden("llama8"))
    online = find()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    lines: list[str] = []
    assert find(lines=lines) == online
    assert "can't be reached" in lines[0]
    assert "from the cache" in lines[0]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_connection_refused_and_nothing_cached(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    refused(SetupError, "can't be reached", "Connection refused", "local folder")


def test_a_hub_that_does_not_answer(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, golden("llama8"))
    hub.silent_s = 2
    monkeypatch.setattr(download, "ANSWER_S", 0.2)
    refused(SetupError, "can't be reached", "ReadTimeout")


@pytest.mark.parametrize("status", [500, 503])
def test_a_hub_that_is_down(hub: FakeHub, status: int) -> None:
    hub.fail_with = status
    refused(SetupError, "can't be reached", str(status))


def test_too_many_requests(hub: FakeHub) -> None:
    hub.fail_with = 429
    refused(SetupError, "answered 429", "later")


def test_unknown_repository(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(SetupError, "does not exist or is private", "HF_TOKEN")
    hub.tokens["good"] = False
    monkeypatch.setenv("HF_TOKEN", "good")
    refused(ConfigError, "no repository", "check the name")


def test_unknown_revision(hub: FakeHub) -> None:
    hub.add(NAME, golden("llama8"))
    refused(ConfigError, "model.revision 'v9'", NAME, revision="v9")


def test_private_repository_needs_the_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, golden("llama8"), private=True)
    refused(SetupError, "private", "HF_TOKEN")
    hub.tokens["good"] = False
    monkeypatch.setenv("HF_TOKEN", "good")
    assert find().source == NAME


def test_token_that_is_not_accepted(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, golden("llama8"), private=True)
    monkeypatch.setenv("HF_TOKEN", "stale")
    refused(SetupError, "does not accept your HF_TOKEN")


def test_gated_repository(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, golden("llama8"), gated=True)
    page = f"{hub.endpoint}/{NAME}"
    refused(SetupError, "gated", page, "set HF_TOKEN")
    hub.tokens = {"new": False, "accepted": True}
    monkeypatch.setenv("HF_TOKEN", "new")
    refused(SetupError, "gated", page, "account of your HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "accepted")
    assert find().source == NAME


def test_interrupted_download_is_not_taken_for_a_model(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, golden("llama8"))
    hub.cut = {"model.safetensors": 50_000}
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    with pytest.raises(SetupError, match="can't be reached"):
        find()
    refused(SetupError, "not whole in the cache", offline=True)
    hub.cut = {}
    assert find().digest == open_folder(golden("llama8"), source="local").digest


def test_model_that_cant_be_served_is_refused_before_its_weights(hub: FakeHub, tmp_path: Path) -> None:
    shutil.copytree(golden("llama8"), tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    hub.add(NAME, tmp_path / "model")
    refused(ConfigError, NAME, "linear-attention")
    assert not [path for _, path in hub.requests if path.endswith(".safetensors")]


def test_repository_without_safetensors(hub: FakeHub) -> None:
    hub.add(NAME, golden("llama8"))
    hub.commit(NAME, {"config.json": (golden("llama8") / "config.json").read_bytes(), "pytorch_model.bin": b"x"})
    refused(ConfigError, NAME, "no safetensors")


def test_repository_without_config(hub: FakeHub) -> None:
    hub.add(NAME, golden("llama8"))
    hub.commit(NAME, {"README.md": b"a data set"})
    refused(ConfigError, NAME, "no config.json")


@pytest.mark.parametrize("path", ["nothing-here", "/no/such/folder", "a/b/c", "./tiny", "acme/"])
def test_what_is_neither_path_nor_hub_id(hub: FakeHub, path: str) -> None:
    refused(ConfigError, path, "does not exist", "org/name", path=path)
    assert not hub.requests
