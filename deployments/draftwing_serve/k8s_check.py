"""Would a cluster take this overlay? Rendered by kubectl, and checked against KubeRay's own schemas and Serve's."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from draftwing.config_errors import explain
from draftwing.errors import ConfigError, SetupError

_TIMEOUT_S = 60
_OPEN = "x-kubernetes-preserve-unknown-fields"


def rendered(overlay: Path) -> list[dict[str, Any]]:
    """The documents of `kubectl kustomize`. SetupError without kubectl, ConfigError where it refuses the folder."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise SetupError("kubectl is not installed, and the overlay is rendered by it; install kubectl")
    if not (overlay / "kustomization.yaml").is_file():
        raise ConfigError(f"overlay {overlay} has no kustomization.yaml; expected a folder like k8s/overlays/local-cpu")
    done = subprocess.run(
        [kubectl, "kustomize", str(overlay)], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise ConfigError(f"overlay {overlay} does not render: {done.stderr.strip().splitlines()[-1]}")
    return list(yaml.safe_load_all(done.stdout))


def schemas(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """By (apiVersion, kind): the schema of every CRD in the folder, closed: a field it doesn't name is an error."""
    if not folder.is_dir():
        raise ConfigError(
            f"CRD folder {folder} doesn't exist; give --crds DIR or set DRAFTWING_CRDS to one with *.yaml"
        )
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for file in sorted(folder.glob("*.yaml")):
        for crd in _documents(file):
            if not isinstance(crd, dict) or crd.get("kind") != "CustomResourceDefinition":
                continue
            spec = crd["spec"]
            for version in spec["versions"]:
                key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                found[key] = _closed(version["schema"]["openAPIV3Schema"])
    if not found:
        raise ConfigError(f"CRD folder {folder} holds no CustomResourceDefinition in *.yaml")
    return found


def _documents(file: Path) -> list[Any]:
    try:
        return list(yaml.load_all(file.read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"CRD file {file} can't be read: {' '.join(str(error).split())}") from None


def problems(documents: list[dict[str, Any]], known: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    """What a cluster would refuse, a line each: custom resources by their CRDs, a RayService's config by Serve."""
    from jsonschema import Draft202012Validator

    for document in documents:
        kind, name = document["kind"], document["metadata"]["name"]
        group = document["apiVersion"].partition("/")[0]
        schema = known.get((document["apiVersion"], kind))
        if schema is None:
            if "." in group and not group.endswith(".k8s.io"):
                yield f"{kind} {name}: no CRD for {document['apiVersion']} {kind} in the folder"
            continue
        for error in Draft202012Validator(schema).iter_errors(_with_defaults(document, schema)):
            yield f"{kind} {name}: {'.'.join(map(str, error.absolute_path)) or 'document'}: {error.message[:200]}"
        if kind == "RayService":
            yield from _serve_problems(name, document["spec"].get("serveConfigV2", ""))


def _serve_problems(name: str, text: str) -> Iterator[str]:
    from pydantic import ValidationError
    from ray.serve.schema import ServeDeploySchema

    from draftwing.config import Config

    try:
        parsed = ServeDeploySchema.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        yield f"RayService {name}: serveConfigV2: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}"
        return
    for application in parsed.applications:
        try:
            Config.model_validate(application.args)
        except ValidationError as error:
            for _, message in explain(error, Config):
                yield f"RayService {name}: application {application.name}: {message}"


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema where objects take the fields they list and no others, and Kubernetes' own extensions are plain."""
    closed = dict(schema)
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if "properties" in schema:
        closed["properties"] = {name: _closed(each) for name, each in schema["properties"].items()}
        if not schema.get(_OPEN) and "additionalProperties" not in schema:
            closed["additionalProperties"] = False
    if isinstance(schema.get("additionalProperties"), dict):
        closed["additionalProperties"] = _closed(schema["additionalProperties"])
    if isinstance(schema.get("items"), dict):
        closed["items"] = _closed(schema["items"])
    return closed


def _with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    """As the API server fills it in before it validates."""
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        filled = {name: _with_defaults(each, fields.get(name, {})) for name, each in value.items()}
        for name, field in fields.items():
            if "default" in field and name not in filled:
                filled[name] = field["default"]
        return filled
    if isinstance(value, list):
        return [_with_defaults(each, schema.get("items", {})) for each in value]
    return value
