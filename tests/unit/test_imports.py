"""Every third-party package that a source file imports is declared where an installation would bring it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.conftest import ROOT

OURS = {"draftwing", "draftwing_serve", "draftwing_tuner", "draftwing_dashboards", "benchmarks", "tests"}
# Parts of pydantic that it ships as distributions of their own, and pins.
PART_OF = {"annotated-types": "pydantic", "pydantic-core": "pydantic"}
SOURCES = [
    ("platform/draftwing", ("bench",)),  # imported where it is used, after a message that names the extra
    ("platform/draftwing/testing", ("testing",)),
    ("deployments/draftwing_serve", ("serve",)),
    ("tuner/draftwing_tuner", ("tune",)),
    ("dashboards/draftwing_dashboards", ("dashboards",)),
    ("examples", ("demo",)),
    ("benchmarks", ("demo", "dev")),
    ("tests", ("demo", "dev")),
]


def declared(extras: tuple[str, ...]) -> set[str]:
    """Names of the distributions that `pip install draftwing[extras]` asks for, normalised."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    names: set[str] = set()
    for line in lines:
        nested = re.fullmatch(r"draftwing\[(.*)\]", line)
        names |= declared(tuple(nested[1].split(","))) if nested else {re.split(r"[\[<>=~! ]", line)[0]}
    return names


def imported(file: Path) -> set[str]:
    """Top-level modules that a file imports, anywhere in it, less the standard library's and ours."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names - set(sys.stdlib_module_names) - OURS


@cache
def distributions() -> dict[str, set[str]]:
    """Normalised names of the installed distributions that bring each top-level module."""
    found = {}
    for module, names in packages_distributions().items():
        normal = {re.sub(r"[-_.]+", "-", name).lower() for name in names}
        found[module] = {PART_OF.get(name, name) for name in normal}
    return found


@pytest.mark.parametrize(("folder", "extras"), SOURCES)
def test_imports_are_declared(folder: str, extras: tuple[str, ...]) -> None:
    owners, allowed = distributions(), declared(extras)
    others = [ROOT / other for other, _ in SOURCES if other.startswith(f"{folder}/")] + [ROOT / "tests/goldens"]
    files = [file for file in (ROOT / folder).rglob("*.py") if not any(file.is_relative_to(other) for other in others)]
    assert files or folder == "examples"
    found = [
        f"{file.relative_to(ROOT)}: {module}"
        for file in files
        for module in sorted(imported(file))
        if not owners.get(module, {module}) & allowed
    ]
    assert not found, f"imported but not declared for {folder}: {found}"
