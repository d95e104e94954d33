"""`draftwing simulate`: the closed form, and a trace replayed under a policy."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from draftwing.errors import ConfigError
from draftwing.policy.artifact import CostRow, ScheduleRow
from draftwing_tuner.history import StudyRow
from draftwing_tuner.publish import publish
from draftwing_tuner.simulate_command import register
from draftwing_tuner.trace import write_trace
from tests.unit.tuner.traces import made_up_trace


def run(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    args = parser.parse_args(["simulate", *flags])
    code: int = args.run(args)
    return code


def test_simulate_prints_the_closed_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--alpha", "0.7", "--k", "4", "--json") == 0
    assert json.loads(capsys.readouterr().out)["expected_tokens"] == pytest.approx(2.7731)


@pytest.mark.parametrize(
    "args", [["--alpha", "1.5", "--k", "4"], ["--alpha", "nan", "--k", "4"], ["--alpha", "0.5", "--k", "-1"]]
)
def test_simulate_names_a_wrong_value(args: list[str]) -> None:
    with pytest.raises(ConfigError, match="expected 0 to"):
        run(*args)


@pytest.fixture
def replay(tmp_path: Path) -> list[str]:
    """Flags of a trace and a curve on which drafting is cheap."""
    write_trace(made_up_trace(4, answers=8), tmp_path / "trace")
    curve = {
        "name": "flat",
        "verify": [{"batch": 1, "rows": rows, "context": 0, "verify_ms": 10 + rows / 100} for rows in (1, 8, 64)],
        "draft_step_ms": [{"batch": 1, "ms": 0.1}],
    }
    (tmp_path / "costs.json").write_text(json.dumps(curve))
    return ["--trace", str(tmp_path / "trace"), "--costs", str(tmp_path / "costs.json"), "--json"]


def document(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert run(*flags) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("mode", ["off", "fixed:k=3", "fixed:tree=3x2", "adaptive"])
def test_a_trace_replays_under_every_mode(capsys: pytest.CaptureFixture[str], replay: list[str], mode: str) -> None:
    found = document(capsys, *replay, "--policy", mode, "--arrivals", "closed:2", "--requests", "12")
    assert found["requests"] == 12
    if mode == "off":
        assert (found["speedup"], found["draft_tokens"]) == (1.0, 0)
    else:
        assert found["speedup"] > 1.05
        assert 0 < found["accepted_tokens"] < found["tokens"]


def test_arrivals_pass_with_the_clock(capsys: pytest.CaptureFixture[str], replay: list[str]) -> None:
    rare = document(capsys, *replay, "--policy", "off", "--arrivals", "poisson:0.5", "--seed", "3")
    dense = document(capsys, *replay, "--policy", "off", "--arrivals", "poisson:500", "--seed", "3")
    assert rare["tokens"] == dense["tokens"]
    assert rare["seconds"] > 4 > dense["seconds"]
    assert rare["token_ms"]["p50"] < dense["token_ms"]["p50"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policy", "off", "--arrivals", "closed"], "expected such as closed:8 or poisson:2.5"),
        (["--policy", "off", "--arrivals", "poisson:0"], "expected such as closed:8 or poisson:2.5"),
        (["--policy", "off", "--drafter", "none"], "it holds made"),
        (["--policy", "off", "--requests", "0"], "expected at least 1"),
        ([], "--trace needs --costs"),
    ],
)
def test_a_wrong_flag_is_named(replay: list[str], flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(*replay, *flags)


def test_neither_form_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--alpha and --k, or --trace"):
        run("--alpha", "0.5")


@pytest.fixture
def published(tmp_path: Path) -> str:
    """A profile on whose costs rows are cheap; its table drafts trees alone and nothing in company."""
    cells = [("verify", b, rows, 1e4 + 10 * rows) for b, rows in ((1, 1), (1, 8), (4, 4), (4, 64))] + [
        ("draft", 1, 1, 100.0)
    ]
    publish(
        str(tmp_path / "profiles"),
        {"device": "a cpu"},
        costs=[CostRow(part, b, n, 16, 1, 1, 9, us, us, us, us, us) for part, b, n, us in cells],
        cost_fit=[],
        acceptance=[],
        schedule=[ScheduleRow(1, 64, (3, 2), 9, 2.0, 90.0, 1.3), ScheduleRow(4, 64, (), 0, 1.0, 90.0, 1.0)],
        study=[StudyRow(4, 64, 0, 1.0, 1.0, "no draft"), StudyRow(4, 64, 1, 1.2, 1.2, "2x2, 5 nodes")],
        block=False,
    )
    return str(tmp_path / "profiles")


def test_a_profile_is_compared_with_fixed_settings(
    capsys: pytest.CaptureFixture[str], replay: list[str], published: str
) -> None:
    found = document(capsys, *replay[:2], "--profile", published, "--json")
    settings = {one["name"]: one for one in found["settings"]}
    chains = [f"fixed k={k}" for k in range(1, 6)]
    trees = ["fixed 3x2, 9 nodes", "fixed 2x2, 5 nodes"]
    assert [*settings] == ["plain decoding", *chains, *trees, "untuned default", "table", "adaptive"]
    alone, together = settings["table"]["ratios"]
    assert alone == pytest.approx(settings["fixed 3x2, 9 nodes"]["ratios"][0])
    assert 1.0 <= together < alone
    for name in ("adaptive", "untuned default"):
        assert settings[name]["overall"] > settings["fixed k=4"]["overall"]
    assert run(*replay[:2], "--profile", published) == 0
    assert "adaptive" in capsys.readouterr().out


def test_a_profile_brings_its_own_costs(replay: list[str], published: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--costs has no part in --profile"):
        run(*replay, "--profile", published)
    with pytest.raises(ConfigError, match="--policy has no part in --profile"):
        run(*replay[:2], "--profile", published, "--policy", "off")
    with pytest.raises(ConfigError, match="no profile was published"):
        run(*replay[:2], "--profile", str(tmp_path / "nothing"))
