"""Ranks of a replica, as a config may ask for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_config import load, problems


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "parallel: {pipeline: 2}",
            "c.yaml:1: parallel.pipeline is 2, and pipeline stages are not available; expected 1 "
            "(raise parallel.tensor instead)",
        ),
        (
            "parallel: {tensor: 2, expert: 4}",
            "c.yaml:1: parallel.expert is 4, but parallel.tensor is 2; expected 2, or parallel.tensor: 1",
        ),
        (
            "{model: {quantization: int8}, parallel: {tensor: 2}}",
            "c.yaml:1: parallel is {'tensor': 2}, and model.quantization is 'int8', which runs on one rank only; "
            "set one of the two",
        ),
    ],
)
def test_ranks_that_can_not_be(text: str, problem: str) -> None:
    assert problems(text) == [problem]


def test_ranks_of_a_replica() -> None:
    sizes = [("", 1), ("tensor: 4", 4), ("expert: 4", 4), ("tensor: 4, expert: 4", 4)]
    assert [load(f"parallel: {{{text}}}").config.parallel.ranks for text, _ in sizes] == [ranks for _, ranks in sizes]
