"""Grafana's dashboard JSON from panels: as much of the format as ours use (schema version 39, Grafana 10 and newer)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

SCHEMA_VERSION = 39
WIDTH = 24  # columns of Grafana's grid
PREFIX = "${prefix}"  # in front of every metric: ours, or Ray's copy of it
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression. legend: Grafana's template of a line's name."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """unit: Grafana's name of it. width: columns of 24. idle: no data before the first request is right."""

    title: str
    queries: Sequence[Query]
    text: str
    unit: str = "short"
    kind: Literal["timeseries", "stat", "bargauge"] = "timeseries"
    width: int = 8
    height: int = 7
    stacked: bool = False
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """uid: stays the same over versions, so that links and pushes find it."""

    uid: str
    title: str
    text: str
    rows: Sequence[tuple[str, Sequence[Panel]]]

    @property
    def panels(self) -> list[Panel]:
        return [panel for _, panels in self.rows for panel in panels]

    def as_json(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.text,
            "tags": ["draftwing"],
            "schemaVersion": SCHEMA_VERSION,
            "editable": True,
            "refresh": "10s",
            "time": {"from": "now-30m", "to": "now"},
            "templating": {"list": [_datasource_variable(), _prefix_variable()]},
            "panels": self._laid_out(),
        }

    def _laid_out(self) -> list[dict[str, Any]]:
        """Panels in reading order, a new line of the grid where one is full."""
        placed: list[dict[str, Any]] = []
        y = 0
        for title, panels in self.rows:
            place = {"h": 1, "w": WIDTH, "x": 0, "y": y}
            placed.append({"type": "row", "id": len(placed) + 1, "title": title, "gridPos": place, "panels": []})
            x, y, tallest = 0, y + 1, 0
            for panel in panels:
                if x + panel.width > WIDTH:
                    x, y, tallest = 0, y + tallest, 0
                grid = {"h": panel.height, "w": panel.width, "x": x, "y": y}
                placed.append(_panel_json(panel, len(placed) + 1, grid))
                x, tallest = x + panel.width, max(tallest, panel.height)
            y += tallest
        return placed


def _panel_json(panel: Panel, number: int, grid: dict[str, int]) -> dict[str, Any]:
    custom = {"fillOpacity": 10, "showPoints": "never"}
    if panel.stacked:
        custom |= {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 60}
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "timeseries":
        defaults["custom"] = custom
    return {
        "type": panel.kind,
        "id": number,
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "gridPos": grid,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}} if panel.kind != "timeseries" else {},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
                "datasource": DATASOURCE,
                "instant": panel.kind != "timeseries",
            }
            for place, query in enumerate(panel.queries)
        ],
    }


def _datasource_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _prefix_variable() -> dict[str, Any]:
    """`draftwing_`: the gateways' /metrics; `ray_draftwing_`: the same counters on Ray's own port."""
    values = ("draftwing_", "ray_draftwing_")
    options = [{"text": value, "value": value, "selected": value == values[0]} for value in values]
    return {
        "name": "prefix",
        "label": "Metrics",
        "type": "custom",
        "query": ",".join(values),
        "current": options[0],
        "options": options,
    }
