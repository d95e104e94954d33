"""A hub id is inspected without its weights, with the refusals that a download has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftwing.checkpoints.inspection import inspect_checkpoint
from draftwing.errors import ConfigError, DraftwingError, SetupError
from tests.conftest import ROOT
from tests.fake_hub import FakeHub
from tests.unit import test_loading_hub

hub = test_loading_hub.hub
GOLDENS = ROOT / "tests" / "goldens"
NAME = "acme/head"


def test_a_large_checkpoint_is_told_by_its_header(hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 1}')
    tensors = {f"model.layers.0.mlp.{part}.weight": torch.zeros(1000, 500) for part in ("up_proj", "gate_proj")}
    save_file(tensors, folder / "model-00001-of-00002.safetensors")
    save_file({"lm_head.weight": torch.zeros(2000, 500)}, folder / "model-00002-of-00002.safetensors")
    hub.add(NAME, folder)
    found = inspect_checkpoint(NAME)
    assert found.parts[0].parameters == 2_000_000
    assert sum(hub.sent.values()) < 210_000
    assert found.layout == inspect_checkpoint(str(folder)).layout


def test_a_golden_head_is_the_same_from_the_hub(hub: FakeHub) -> None:
    folder = GOLDENS / "eagle3_speculators" / "drafter"
    hub.add(NAME, folder)
    found, local = inspect_checkpoint(NAME), inspect_checkpoint(str(folder))
    assert (found.layout, found.parts, found.tensors, found.features) == (
        local.layout,
        local.parts,
        local.tensors,
        local.features,
    )


def test_archives_are_downloaded(hub: FakeHub) -> None:
    hub.add(NAME, GOLDENS / "medusa1" / "drafter")
    assert inspect_checkpoint(NAME).layout.method == "medusa"


def test_offline_the_cached_copy_is_told(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, GOLDENS / "medusa1" / "drafter")
    inspect_checkpoint(NAME)
    hub.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    told: list[str] = []
    assert inspect_checkpoint(NAME, progress=told.append).layout.method == "medusa"
    assert not hub.requests
    assert "offline mode is on: using acme/head" in told[0]
    with pytest.raises(SetupError, match="is not whole in the cache"):
        inspect_checkpoint("acme/other")


@pytest.mark.parametrize(
    ("path", "revision", "error", "told"),
    [
        ("acme/nothing", None, SetupError, "does not exist or is private"),
        (NAME, "v9", ConfigError, "'v9' does not exist in acme/head"),
    ],
)
def test_the_hubs_refusal_is_one_line(
    path: str, revision: str | None, error: type[DraftwingError], told: str, hub: FakeHub
) -> None:
    hub.add(NAME, GOLDENS / "eagle3_speculators" / "drafter")
    with pytest.raises(error, match=told) as caught:
        inspect_checkpoint(path, revision)
    assert "\n" not in str(caught.value)


def test_a_damaged_header_is_one_line(hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(os.urandom(200))
    hub.add(NAME, folder)
    with pytest.raises(ConfigError, match=r"acme/head/model\.safetensors is not a safetensors file") as caught:
        inspect_checkpoint(NAME)
    assert "\n" not in str(caught.value)
