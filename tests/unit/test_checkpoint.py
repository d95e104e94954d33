"""A drafter's checkpoint from disk: every layout, read once, and nothing left unread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.errors import ConfigError

ONE, TWO = torch.arange(6.0).reshape(2, 3), torch.ones(4)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTWING_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "head"
    made.mkdir()
    (made / "config.json").write_text(json.dumps({"hidden_size": 3}))
    return made


def archive(path: Path, held: object) -> None:
    getattr(torch, "save")(held, path)  # noqa: B009  files as others publish them


def test_safetensors_of_any_name_and_shards(folder: Path) -> None:
    save_file({"one": ONE}, folder / "a.safetensors")
    save_file({"two": TWO}, folder / "b.safetensors")
    checkpoint = open_checkpoint(str(folder))
    assert sorted(checkpoint.names()) == ["one", "two"]
    assert checkpoint.shape("one") == (2, 3)
    assert torch.equal(checkpoint.read("one"), ONE)
    assert checkpoint.config["hidden_size"] == 3


def test_what_nobody_read_is_refused(folder: Path) -> None:
    save_file({"one": ONE, "two": TWO, "three": TWO.clone()}, folder / "model.safetensors")
    checkpoint = open_checkpoint(str(folder))
    checkpoint.read("one")
    checkpoint.shape("two")
    checkpoint.skip(["three"])
    with pytest.raises(ConfigError, match=r"does not know: two \[4\];"):
        checkpoint.refuse_unread()
    checkpoint.read("two")
    checkpoint.refuse_unread()


def test_a_mask_embedding_that_is_published_beside_the_weights_is_read(folder: Path) -> None:
    save_file({"one": ONE}, folder / "model.safetensors")
    archive(folder / "mask_embedding.pt", TWO)
    archive(folder / "pytorch_model.bin", {"one": ONE})  # another copy of the weights
    checkpoint = open_checkpoint(str(folder))
    assert sorted(checkpoint.names()) == ["mask_embedding", "one"]
    assert checkpoint.shape("mask_embedding") == (4,)
    assert torch.equal(checkpoint.read("mask_embedding"), TWO)


def test_an_archive_is_converted_once(folder: Path, cache: Path) -> None:
    shared = torch.arange(8.0)
    archive(folder / "pytorch_model.bin", {"one": ONE.T, "half": shared[:4], "whole": shared})
    archive(folder / "training_args.bin", {"lr": 1})
    told: list[str] = []
    assert torch.equal(open_checkpoint(str(folder), progress=told.append).read("one"), ONE.T)
    assert torch.equal(open_checkpoint(str(folder), progress=told.append).read("half"), shared[:4])
    assert len(told) == 1
    assert len(list(cache.glob("drafters/*/model.safetensors"))) == 1


@pytest.mark.parametrize("held", [{"one": Path("x")}, [ONE], {"one": {"two": ONE}}])
def test_an_archive_of_objects_is_refused(folder: Path, held: object) -> None:
    archive(folder / "head.pt", held)
    with pytest.raises(ConfigError, match=r"head\.pt"):
        open_checkpoint(str(folder))


def test_what_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no weights"):
        open_checkpoint(str(folder))
    save_file({"one": ONE}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match="has no tensor two; it has one"):
        open_checkpoint(str(folder)).read("two")
    with pytest.raises(ConfigError, match="does not exist"):
        open_checkpoint(str(tmp_path / "nowhere"))
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        open_checkpoint(str(folder))
