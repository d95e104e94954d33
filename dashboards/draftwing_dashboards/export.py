"""Dashboards and Grafana's provisioning files in a folder, which Grafana reads at start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from draftwing.errors import SetupError
from draftwing_dashboards.boards import BOARDS

GRAFANA_FOLDER = "/var/lib/grafana/dashboards/draftwing"  # where the provisioning file says that Grafana finds them


def files(prometheus: str) -> dict[str, str]:
    """Path in the folder -> content. prometheus: its URL, for the data source."""
    source = {"name": "Prometheus", "type": "prometheus", "uid": "draftwing", "url": prometheus, "isDefault": True}
    provider = {
        "name": "draftwing",
        "folder": "Draftwing",
        "type": "file",
        "options": {"path": GRAFANA_FOLDER},
    }
    boards = {f"dashboards/draftwing/{board.uid}.json": _json(board.as_json()) for board in BOARDS}
    return {
        **boards,
        "provisioning/dashboards/draftwing.yaml": _yaml({"apiVersion": 1, "providers": [provider]}),
        "provisioning/datasources/draftwing.yaml": _yaml({"apiVersion": 1, "datasources": [source]}),
    }


def export(folder: Path, prometheus: str) -> list[Path]:
    """Write them; SetupError where that fails."""
    written = []
    try:
        for name, text in files(prometheus).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            written.append(path)
    except OSError as error:
        raise SetupError(f"--out {folder} can't be written: {error.strerror}") from None
    return written


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _yaml(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False)
