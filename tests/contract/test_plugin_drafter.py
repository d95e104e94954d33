"""The plug-in example, found as an installed one would be, keeps the contract."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from draftwing.config_models import DrafterConfig
from draftwing.drafters.registry import find_method, make_drafter, method_names
from draftwing.testing.drafter_contract import DrafterContract, MakeDrafter, bound
from tests.conftest import ROOT

FOLDER = ROOT / "examples/plugin_drafter"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package and its entry points on the path, as an installer leaves them."""
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(FOLDER), *sys.path])


class TestPlugIn(DrafterContract):
    @pytest.fixture
    def make_drafter(self) -> MakeDrafter:
        return lambda: bound(make_drafter(DrafterConfig.model_validate({"method": "repeat", "period": 3})))


def test_it_is_listed_and_found() -> None:
    assert ("repeat", True) in method_names()
    assert find_method("repeat").facts.summary == "repeats the last tokens"
