"""Do the dashboards show data? Every expression is run against a Prometheus that scrapes a running server."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from draftwing.errors import SetupError
from draftwing_dashboards.boards import BOARDS
from draftwing_dashboards.grafana import PREFIX, Panel

TIMEOUT_S = 10.0
NAME = re.compile(re.escape(PREFIX) + r"([a-z0-9_]+)")


@dataclass(frozen=True, slots=True)
class Found:
    """One expression. problem: "" where it is fine."""

    dashboard: str
    panel: str
    expression: str
    series: int
    problem: str = ""


def metrics_of(expression: str) -> list[str]:
    """The metrics it names, without their prefix."""
    return NAME.findall(expression)


def check(prometheus: str, *, prefix: str = "draftwing_", window: str = "1m") -> list[Found]:
    """Parse every expression, look for its metrics, and ask for its value now.

    window: stands for Grafana's rate interval. SetupError where Prometheus can't be asked.
    """
    with httpx.Client(base_url=prometheus.rstrip("/"), timeout=TIMEOUT_S) as client:

        def ask(path: str, **parameters: str) -> Any:
            return _ask(client, prometheus, path, parameters)

        known = set(ask("/api/v1/label/__name__/values"))
        return [
            _checked(board.uid, panel, query.expression, ask, known, (prefix, window))
            for board in BOARDS
            for panel in board.panels
            for query in panel.queries
        ]


def _checked(
    board: str, panel: Panel, expression: str, ask: Callable[..., Any], known: set[str], settings: tuple[str, str]
) -> Found:
    prefix, window = settings
    missing = [prefix + name for name in metrics_of(expression) if prefix + name not in known]
    query = expression.replace("$__rate_interval", window).replace(PREFIX, prefix)
    try:
        series = len(ask("/api/v1/query", query=query)["result"])
    except ValueError as error:
        return Found(board, panel.title, expression, 0, str(error))
    problem = f"no metric {', '.join(missing)}" if missing else "" if series or panel.idle else "no data"
    return Found(board, panel.title, expression, series, problem)


def _ask(client: httpx.Client, prometheus: str, path: str, parameters: dict[str, str]) -> Any:
    """ValueError with Prometheus' own words where it refuses the expression."""
    try:
        response = client.get(path, params=parameters)
        answer = response.json()
    except httpx.HTTPError as error:
        raise SetupError(f"Prometheus at {prometheus} can't be reached: {error}") from None
    except ValueError:
        raise SetupError(f"what answers at {prometheus} is not Prometheus (status {response.status_code})") from None
    if answer.get("status") != "success":
        raise ValueError(answer.get("error", "refused without a reason"))
    return answer["data"]
