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
    assert app._gpus(Config.model_validate({"model": {"path": "x", "device": device}})) == taken
