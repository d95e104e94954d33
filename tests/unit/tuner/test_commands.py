"""`draftwing tune` on the command line."""

from __future__ import annotations

import pytest

from draftwing.cli import main
from draftwing.errors import ConfigError
from draftwing_tuner.commands import seconds


@pytest.mark.parametrize(("text", "value"), [("90s", 90), ("5m", 300), ("1h", 3600), ("1.5m", 90), (" 2s ", 2)])
def test_a_budget_is_a_time(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "5", "m", "0s", "-1m", "5 minutes", "1e3s", "5m30s"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a time such as 90s, 5m or 1h"):
        seconds(text)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--budget", "soon"], "--budget is 'soon'"),
        (["--trials", "1"], "--trials is 1; expected at least 4"),
        (["--max-tokens", "2"], "--max-tokens is 2; expected at least 8"),
        (["--temperature", "-1"], "--temperature is -1.0; expected 0 or more"),
        (["--prompts", "no-such-file"], "--prompts no-such-file can't be read"),
        (["--drafter", "none"], "nothing would be drafted: configure a drafter"),
        (["collect", "--drafter", "none"], "nothing would be drafted: configure a drafter"),
        (
            ["--drafter", "ngram", "--publish", "what://place"],
            "'what://place', which can't be opened",
        ),
        (
            ["--drafter", "ngram", "--publish", "/dev/null/profiles"],
            "/dev/null/profiles can't be written",
        ),
    ],
)
def test_wrong_flags_are_named_before_anything_is_loaded(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *flags, "--model", "no-such-model"]) in (2, 3)
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_part_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tune", "polish"])
    assert "'polish' is not one of all, measure, collect" in capsys.readouterr().err
