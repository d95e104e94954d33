"""Rule R5: nothing of ours reads or writes pickle."""

from __future__ import annotations

import ast

import pytest

from tests.conftest import ROOT
from tests.unit.test_code_size import python_files

MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
CALLS = {
    *("send_pyobj", "recv_pyobj", "torch.save"),
    *("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list"),
}


def pickles(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    passed = {f"{entry.arg}={ast.unparse(entry.value)}" for entry in call.keywords}
    if name == "torch.load":
        return "weights_only=True" not in passed
    return name in CALLS or name.rpartition(".")[2] in CALLS or "allow_pickle=True" in passed


def pickle_uses(source: str) -> list[int]:
    """Line numbers that import a pickling module, or call something that pickles."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = any(alias.name.split(".")[0] in MODULES for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found = (node.module or "").split(".")[0] in MODULES
        else:
            found = isinstance(node, ast.Call) and pickles(node)
        if found:
            lines.append(getattr(node, "lineno", 0))
    return lines


def test_project_uses_no_pickle() -> None:
    found = [f"{file.relative_to(ROOT)}:{line}" for file in python_files() for line in pickle_uses(file.read_text())]
    assert not found


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import pickle", 1),
        ("from cloudpickle import dumps", 1),
        ("import os.path as pickle", 0),
        ("torch.load(file)", 1),
        ("torch.load(file, weights_only=True)", 0),
        ("torch.load(file, weights_only=False)", 1),
        ("torch.save(state, file)", 1),
        ("np.load(file, allow_pickle=True)", 1),
        ("np.load(file, allow_pickle=False)", 0),
        ("socket.recv_pyobj()", 1),
    ],
)
def test_each_use_is_found(source: str, count: int) -> None:
    assert len(pickle_uses(source)) == count
