"""The overlays as a cluster would see them, and what `draftwing k8s` says about wrong ones."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftwing import cli
from draftwing.config import load_config, with_environment
from draftwing.errors import ConfigError
from draftwing_serve.k8s import PodShape, ray_service, serve_config
from draftwing_serve.k8s_check import problems, rendered, schemas
from tests.conftest import ROOT, require

OVERLAYS = sorted((ROOT / "k8s" / "overlays").iterdir())
CRDS = Path(os.environ.get("DRAFTWING_CRDS", ROOT.parent / "shared" / "data" / "crds"))


def crds() -> dict[tuple[str, str], dict[str, Any]]:
    if not CRDS.is_dir():
        pytest.skip(f"needs KubeRay's CRDs, which are not in {CRDS}; name their folder in DRAFTWING_CRDS")
    return schemas(CRDS)


@pytest.fixture(autouse=True)
def declared_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command as it is here, also where an older version is installed."""
    monkeypatch.setattr(
        cli, "found_commands", lambda: [EntryPoint("k8s", "draftwing_serve.k8s_command:register", cli.GROUP)]
    )


def run(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(list(arguments))
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda overlay: overlay.name)
def test_what_is_committed_is_what_the_config_renders_to(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = (overlay / "rendered.yaml").read_text()
    command = committed.splitlines()[0].removeprefix("# Made by: draftwing ")
    monkeypatch.chdir(overlay)
    code, out, err = run(*shlex.split(command))
    assert (code, out) == (0, committed), err


def test_the_first_line_is_a_command_that_makes_the_same_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my config.yaml").write_text("model: {path: x, name: other}\n")
    flags = ["--policy", "fixed:k=2", "--drafter", "ngram", "--device", "cuda", "--set", "limits.sequences=3"]
    code, out, err = run("k8s", "render", "-c", "my config.yaml", *flags, "--gpus-per-pod", "1", "--image", "here/a:b")
    assert code == 0, err
    again = out.splitlines()[0].removeprefix("# Made by: draftwing ")
    assert run(*shlex.split(again)) == (0, out, "")


def test_a_crd_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "rayservice.yaml").write_text("a: [1\n")
    with pytest.raises(ConfigError, match=r"CRD file .*rayservice.yaml can't be read: while parsing"):
        schemas(tmp_path)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda overlay: overlay.name)
def test_a_cluster_takes_the_overlay(overlay: Path) -> None:
    require("kubectl")
    documents = rendered(overlay)
    assert "RayService" in {document["kind"] for document in documents}
    assert list(problems(documents, crds())) == []


def test_a_wrong_field_is_found() -> None:
    known = crds()
    config = load_config(ROOT / "k8s" / "overlays" / "local-cpu" / "draftwing.yaml").config
    right = ray_service(config, PodShape())
    right["spec"]["rayClusterConfig"]["headGroupSpec"] = {
        "rayStartParams": {},
        "template": {"spec": {"containers": [{"name": "ray-head", "image": "x"}]}},
    }
    assert list(problems([right], known)) == []
    group = right["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    group["numOfHost"] = group.pop("numOfHosts")
    (line,) = problems([right], known)
    assert "numOfHost" in line
    group["numOfHosts"] = group.pop("numOfHost")
    served = yaml.safe_load(right["spec"]["serveConfigV2"])
    served["applications"][0]["args"]["model"]["pth"] = "x"
    right["spec"]["serveConfigV2"] = yaml.safe_dump(served)
    (line,) = problems([right], known)
    assert "pth" in line
    right["apiVersion"] = "ray.io/v7"
    (line,) = problems([right], known)
    assert "no CRD for ray.io/v7 RayService" in line


@pytest.mark.parametrize(
    ("tensor", "per_pod", "hosts", "gpus"), [(1, 8, 1, "1"), (8, 8, 1, "8"), (16, 8, 2, "8"), (8, 4, 2, "4")]
)
def test_ranks_become_pods(tensor: int, per_pod: int, hosts: int, gpus: str) -> None:
    settings = {"model.path": "x", "model.device": "cuda", "parallel.tensor": tensor}
    config = load_config(None, settings, {}).config
    group = ray_service(config, PodShape(gpus=per_pod))["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    assert (group["groupName"], group["numOfHosts"]) == ("target-gpu", hosts)
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == gpus


def test_ranks_that_leave_gpus_idle_are_refused() -> None:
    config = load_config(None, {"model.path": "x", "model.device": "cuda", "parallel.tensor": 12}, {}).config
    with pytest.raises(ConfigError, match="12 ranks don't fill pods of 8 GPUs"):
        ray_service(config, PodShape(gpus=8))


def test_keys_stay_out_of_the_manifest() -> None:
    config = load_config(None, {"model.path": "x", "server.keys": ["secret-key-1"]}, {}).config
    with pytest.raises(ConfigError, match="draftwing-keys"):
        serve_config(config)


def test_a_pods_variables_go_over_the_arguments() -> None:
    config = load_config(None, {"model.path": "x", "limits.sequences": 3}, {}).config
    environ = {"DRAFTWING_SERVER__KEYS": "[secret-key-1]", "DRAFTWING_LIMITS__QUEUE": "7"}
    over = with_environment(config, environ)
    assert over.server.keys is not None
    assert [key.get_secret_value() for key in over.server.keys] == ["secret-key-1"]
    assert (over.limits.sequences, over.limits.queue, over.model.path) == (3, 7, "x")
    assert with_environment(config, {}) == config
    with pytest.raises(ConfigError, match="DRAFTWING_LIMITS__QUEU"):
        with_environment(config, {"DRAFTWING_LIMITS__QUEU": "7"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["render"], "model.path is not set"),
        (["render", "--model", "x", "--gpus-per-pod", "0"], "--gpus-per-pod is 0; expected at least 1"),
        (["check", "."], "no CRD folder; give --crds DIR or set DRAFTWING_CRDS"),
        (["check", ".", "--crds", "/no/such"], "CRD folder /no/such doesn't exist"),
        (["check", ".", "--crds", str(ROOT / "k8s")], "holds no CustomResourceDefinition"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTWING_CRDS", raising=False)
    code, out, err = run("k8s", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_folder_that_is_no_overlay() -> None:
    require("kubectl")
    with pytest.raises(ConfigError, match=r"no kustomization\.yaml"):
        rendered(ROOT / "k8s")
