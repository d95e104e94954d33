"""`draftwing bench acceptance`: what a rate by position counts."""

from __future__ import annotations

from typing import Any

import pytest

from draftwing.cli import main
from draftwing.commands import bench
from draftwing.commands.bench import _positions
from draftwing.config_models import Config


def test_a_position_counts_where_the_draft_got_there_and_all_before_was_accepted() -> None:
    rows = _positions([(3, 3), (3, 1), (3, 0), (1, 1)])
    assert [(row["position"], row["reached"], row["accepted"]) for row in rows] == [(1, 4, 3), (2, 2, 1), (3, 1, 1)]
    assert [row["rate"] for row in rows] == [0.75, 0.5, 1.0]


def test_nothing_drafted_is_said() -> None:
    assert _positions([]) == [{"position": 0, "reached": 0, "accepted": 0, "rate": None}]


def test_whole_drafts_are_measured_unless_the_mode_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[str, str]] = []

    def measure(config: Config, rule: str, *_: Any) -> list[dict[str, Any]]:
        seen.append((config.policy.mode, rule))
        return []

    monkeypatch.setattr(bench, "_measure", measure)
    command = ["bench", "acceptance", "--model", "m", "--drafter", "ngram"]
    assert main(command) == 0
    assert main([*command, "--draft-tokens", "7"]) == 0
    assert main([*command, "--policy", "adaptive", "--rule", "invariant"]) == 0
    both = [(mode, rule) for mode in ("fixed:k=4", "fixed:k=7") for rule in ("invariant", "rejection")]
    assert seen == [*both, ("adaptive", "invariant")]
    assert main([*command, "--policy", "adaptive"]) == 2
    assert "the rule rejection needs off or fixed" in capsys.readouterr().err
