"""draftwing policy show and explain, on logs of runs in the planted world."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from draftwing.commands.policy_command import register
from draftwing.decisions.explain import explain
from draftwing.decisions.log import LoggedPolicy, Origin, read_log, replayed
from draftwing.decisions.status import status_of
from draftwing.errors import ConfigError
from draftwing.policy.modes import OffPolicy
from tests.unit.policy.planted import World, costs_of

STEEP = costs_of({1: 10.0, 2: 20.0, 4: 40.0, 8: 80.0, 64: 640.0})
CHEAP = costs_of({1: 10.0, 2: 10.5, 4: 11.0, 8: 12.0, 64: 30.0})


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    args = parser.parse_args(["policy", *arguments])
    code = args.run(args)
    return int(code), capsys.readouterr().out


def logged(file: Path, steps: int, **settings: Any) -> World:
    world = World(OffPolicy(), **settings)
    origin = Origin("adaptive", "planted", world.traits)
    world.policy = LoggedPolicy(origin.make(), origin, file)
    world.rate(steps)
    return world


def test_explains_what_was_chosen_and_what_was_next_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logged(tmp_path / "log", 60, costs=CHEAP, accuracy=0.8, batch=2)
    _, steps = read_log(tmp_path / "log")
    at = next(i for i in range(40, 60) if any(map(len, steps[i].result.verified)))
    code, out = run(["explain", str(tmp_path / "log"), "--step", str(at)], capsys)
    assert code == 0
    for words in (
        "plan: adaptive: drafts",
        "is worth",
        "nodes",
        "were verified for 2 sequences",
        "next best:",
        "it came to",
    ):
        assert words in out, out
    _, out = run(["explain", str(tmp_path / "log"), "--step", str(at), "--json"], capsys)
    found = json.loads(out)
    assert found["verified"] == sum(map(len, steps[at].result.verified))
    assert found["runner_up"] != found["verified"]
    assert found["runner_up_loss"] >= 0
    assert found["expected_tokens"] > 2


def test_explains_why_nothing_was_drafted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logged(tmp_path / "log", 80, costs=STEEP, accuracy=0.2)
    origin, steps = read_log(tmp_path / "log")
    whys = {step.plan.reason: explain(policy, step).why_off for policy, step in replayed(origin, steps)}
    assert "no draft pays" in whys["adaptive: no gain"]
    assert "to be right with 0." in whys["adaptive: no gain"]
    assert "time of plain decoding" in whys.get("adaptive: plain turn", "time of plain decoding")


def test_shows_the_schedule_at_the_end_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = logged(tmp_path / "log", 60, costs=CHEAP, accuracy=0.8)
    code, out = run(["show", "--log", str(tmp_path / "log"), "--json"], capsys)
    assert code == 0
    shown = json.loads(out)
    status = status_of(world.policy)
    assert shown["status"]["schedule"] == [list(row) for row in status.schedule]
    assert status.schedule[0][1] > 0
    assert status.ratio is not None
    assert status.ratio > 1.2
    assert not shown["parameters"]["costs_measured"]
    _, out = run(["show", "--log", str(tmp_path / "log")], capsys)
    assert "sequences  draft length  expected" in out
    assert "x plain decoding" in out
    assert "a guess, corrected" in out


def test_wrong_arguments_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logged(tmp_path / "log", 3, costs=CHEAP)
    with pytest.raises(ConfigError, match="has steps 0 to 2"):
        run(["explain", str(tmp_path / "log"), "--step", "3"], capsys)
    with pytest.raises(ConfigError, match="--log FILE or --profile URI"):
        run(["show"], capsys)
