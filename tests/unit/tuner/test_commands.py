"""`draftwing tune` on the command line."""

from __future__ import annotations

import pytest

from draftwing.errors import ConfigError
from draftwing_tuner.commands import seconds


@pytest.mark.parametrize(("text", "value"), [("90s", 90), ("5m", 300), ("1h", 3600), ("1.5m", 90), (" 2s ", 2)])
def test_a_budget_is_a_time(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "5", "m", "0s", "-1m", "5 minutes", "1e3s", "5m30s"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a time such as 90s, 5m or 1h"):
        seconds(text)
