"""The project stays small enough to read: files, functions and the core have upper bounds."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT

FILE_LINES = 500
FUNCTION_LINES = 60
CORE_LINES = 8_000
CORE = ("engine", "drafters", "policy")
FOLDERS = ("platform", "deployments", "tuner", "dashboards", "benchmarks", "examples", "tests")


def python_files() -> list[Path]:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    return [file for file in files if "goldens" not in file.relative_to(ROOT).parts]


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the function from its def, less its docstring."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def code_lines(source: str) -> int:
    """Lines that are neither empty nor comment nor docstring."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = (line.strip() for number, line in enumerate(source.splitlines(), 1) if number not in documented)
    return sum(1 for line in lines if line and not line.startswith("#"))


def too_long(source: str, name: str) -> list[str]:
    """What in this file is over a bound, as lines for the reader."""
    found = []
    lines = len(source.splitlines())
    if lines > FILE_LINES:
        found.append(f"{name}: {lines} lines, at most {FILE_LINES}")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = function_lines(node)
            if length > FUNCTION_LINES:
                found.append(f"{name}:{node.lineno}: {node.name} has {length} lines, at most {FUNCTION_LINES}")
    return found


def test_files_and_functions_are_short() -> None:
    files = python_files()
    assert ROOT / "platform/draftwing/core.py" in files
    found = [line for file in files for line in too_long(file.read_text(), str(file.relative_to(ROOT)))]
    assert not found, "\n".join(found)


def test_core_is_small() -> None:
    core = [file for part in CORE for file in (ROOT / "platform/draftwing" / part).rglob("*.py")]
    assert sum(code_lines(file.read_text()) for file in core) < CORE_LINES


def test_a_line_of_code_is_no_comment_and_no_docstring() -> None:
    assert code_lines('"""Two\nlines."""\n\n# why\nx = 1  # here\ndef f():\n    """What."""\n    return "it"\n') == 3


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("x = 1\n" * 500, 0),
        ("x = 1\n" * 501, 1),
        ("def f():\n" + "    pass\n" * 59, 0),
        ("def f():\n" + "    pass\n" * 60, 1),
        ('def f():\n    """\n' + "    word\n" * 100 + '    """\n', 0),
        ("class A:\n    async def f(self):\n" + "        pass\n" * 60, 1),
    ],
)
def test_bounds_are_exact(source: str, count: int) -> None:
    assert len(too_long(source, "file.py")) == count
