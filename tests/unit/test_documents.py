"""What the documents name exists: make targets, sub-commands, links, files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from draftwing.config import load_config
from tests.conftest import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
FILE = re.compile(r"`([\w.-]+(?:/[\w.-]+)+)`")


def code(text: str) -> Iterator[str]:
    """Lines of code in a document: fenced blocks, and pieces in backticks outside them."""
    for block in FENCED.findall(text):
        yield from block.splitlines()
    yield from INLINE.findall(FENCED.sub("", text))


def commands(text: str, program: str) -> set[str]:
    """First words after `program` in a document's code: "make test" gives "test"."""
    pattern = re.compile(rf"(?:^|[;&|$] *){program} +([a-z][\w-]*)")
    return {word for line in code(text) for word in pattern.findall(line)}


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_readme_has_the_two_commands() -> None:
    assert {"demo", "test"} <= commands((ROOT / "README.md").read_text(), "make")


def test_make_targets_exist() -> None:
    for document in DOCUMENTS:
        unknown = commands(document.read_text(), "make") - make_targets()
        assert not unknown, f"{document.name} names unknown make targets"


def test_sub_commands_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = set(project["entry-points"]["draftwing.commands"])
    for document in DOCUMENTS:
        unknown = commands(document.read_text(), "draftwing") - known
        assert not unknown, f"{document.name} names unknown sub-commands"


def test_config_examples_load(tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        file = tmp_path / "draftwing.yaml"
        file.write_text(block)
        assert load_config(file, {}, {}).config.model.path


def test_relative_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in LINK.findall(document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_architecture_names_existing_files() -> None:
    files = FILE.findall((ROOT / "docs/architecture.md").read_text())
    assert len(files) >= 10
    missing = [name for name in files if not (ROOT / name).exists()]
    assert not missing


def test_dependencies_are_explained_and_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(line for extra in extras for line in extra)]
    names = {re.split(r"[\[<>=~! ]", line)[0] for line in wanted} - {"draftwing"}
    explained = set(re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs/dependencies.md").read_text(), re.MULTILINE))
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert explained == names
    assert names <= pinned


def test_patterns_find_what_they_should() -> None:
    block = "```sh\ncd x && make demo\ndraftwing serve -c f.yaml  # then make nothing\n```\n"
    text = f"Run `make setup`:\n{block}make no-code\n"
    assert commands(text, "make") == {"setup", "demo"}
    assert commands(text, "draftwing") == {"serve"}
    assert FILE.findall("`a/b.py` `plain.py` `c/d`") == ["a/b.py", "c/d"]
