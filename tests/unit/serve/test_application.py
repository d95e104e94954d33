"""The Serve application as config files and `serve run` see it, without a Ray."""

from __future__ import annotations

from types import FunctionType
from typing import Any, cast

import pytest
import yaml
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
from ray.serve.schema import ServeDeploySchema

from draftwing.config import Config
from draftwing.errors import ConfigError
from draftwing_serve import app
from draftwing_serve.rank_team import RANK_CPUS
from draftwing_serve.ray_edge import by_node
from tests.conftest import ROOT

CONFIGS = sorted((ROOT / "deployments" / "configs").glob("serve*.yaml"))


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_config_files_are_valid(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For Serve, for us, and with deployments that exist."""
    monkeypatch.setattr(app, "cluster_gpus", lambda: 0.0)
    schema = ServeDeploySchema.model_validate(yaml.safe_load(file.read_text()))
    (application,) = schema.applications
    assert application.import_path == "draftwing_serve.app:build"
    built = call_user_app_builder_with_args_if_necessary(cast("FunctionType", app.build), application.args)
    assert {each.name for each in application.deployments} == {app.GATEWAY, app.TARGET}
    assert built._bound_deployment.name == app.GATEWAY


def test_builder_without_model() -> None:
    with pytest.raises(ConfigError, match=r"model\.path"):
        app.build(Config())


@pytest.mark.parametrize(("device", "there", "taken"), [("auto", 0, 0), ("auto", 2, 1), ("cuda", 0, 1), ("cpu", 2, 0)])
def test_gpus_of_a_rank(device: str, there: int, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "cluster_gpus", lambda: float(there))
    assert app.rank_gpus(Config.model_validate({"model": {"path": "x", "device": device}})) == taken


def test_a_bundle_for_each_rank() -> None:
    """The replica's own share is in the first; with GPUs each has one."""
    config = Config.model_validate({"model": {"path": "x"}, "parallel": {"tensor": 3}})
    first, *others = app.rank_bundles(config, 1)
    assert others == [{"CPU": RANK_CPUS, "GPU": 1.0}] * 2
    assert first == {"CPU": app.REPLICA_CPUS + RANK_CPUS, "GPU": 1.0}


@pytest.mark.parametrize(
    ("nodes", "order"),
    [
        ({0: "a"}, [0]),
        ({0: "b", 1: "a", 2: "b", 3: "a"}, [0, 2, 1, 3]),
        ({0: "a", 1: "c", 2: "b", 3: "c", 4: "b", 5: "a"}, [0, 5, 2, 4, 1, 3]),
    ],
)
def test_neighbours_in_rank_are_neighbours_on_a_node(nodes: dict[int, str], order: list[int]) -> None:
    assert by_node(nodes) == order
