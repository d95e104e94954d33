"""Ranks that can't be: one line each, before anything is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from draftwing.checkpoints.model_folder import open_folder
from draftwing.config_models import Config
from draftwing.engine.build import build_engine
from draftwing.engine.shares import WholeEnds
from draftwing.errors import ConfigError, DraftwingError, SetupError
from draftwing.parallel.sharded import check_ranks
from tests.tiny_models import golden


def refused(name: str, cpus: int, monkeypatch: pytest.MonkeyPatch, **parallel: int) -> str:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    document: dict[str, Any] = {"model": {"path": str(golden(name)), "device": "cpu"}, "parallel": parallel}
    with pytest.raises(DraftwingError) as error:
        check_ranks(Config.model_validate(document), open_folder(golden(name), source=name), here=True)
    assert isinstance(error.value, ConfigError | SetupError)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_ranks_that_can_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "this machine has 2 CPUs, one of which each rank needs" in refused("llama8", 2, monkeypatch, tensor=4)
    heads = refused("llama8", 8, monkeypatch, tensor=3)
    assert "parallel.tensor is 3, but llama8 has 4 query heads and 2 key/value heads a layer" in heads
    assert "expected one of 1, 2, 4" in heads
    assert "4 experts a layer; expected one of 1, 2, 4" in refused("mixtral3", 8, monkeypatch, expert=3)
    assert "has no experts; use parallel.tensor: 2" in refused("llama8", 8, monkeypatch, expert=2)


def test_commands_of_one_process_say_so() -> None:
    document = {"model": {"path": str(golden("llama8"))}, "parallel": {"tensor": 2}}
    with pytest.raises(ConfigError, match="this command runs the model in one process"):
        build_engine(Config.model_validate(document))


def test_a_drafter_made_of_the_targets_layers_is_refused(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(4, 2), nn.Linear(2, 4)

        def get_input_embeddings(self) -> nn.Module:
            return self.table

        def get_output_embeddings(self) -> nn.Module:
            return self.head

    ends = WholeEnds(Model(), tmp_path, torch.float32, torch.device("cpu"))
    with pytest.raises(ConfigError, match="made of the target's own layers"):
        ends.get_decoder()
