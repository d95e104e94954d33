from __future__ import annotations

import argparse
import json

import pytest

from draftwing.commands.simulate import register
from draftwing.errors import ConfigError


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
