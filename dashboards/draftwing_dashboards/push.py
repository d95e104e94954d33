"""Dashboards to a running Grafana, through the grafana-api package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from draftwing.errors import ConfigError, SetupError
from draftwing_dashboards.boards import BOARDS

FOLDER_UID, FOLDER_TITLE = "draftwing", "Draftwing"
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Grafana:
    """url: http(s)://host[:port][/path]. token: of a service account that may edit dashboards."""

    url: str
    token: str

    def connect(self) -> Any:
        from grafana_api.grafana_face import GrafanaFace

        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--grafana is {self.url!r}; expected http://host:3000 or https://host/path")
        path = parts.path.strip("/")
        return GrafanaFace(
            self.token,
            host=parts.hostname,
            port=parts.port,
            url_path_prefix=f"{path}/" if path else "",
            protocol=parts.scheme,
            timeout=TIMEOUT_S,
        )


def push(grafana: Grafana) -> list[str]:
    """The dashboards' addresses. SetupError, one line, where Grafana can't be reached or refuses."""
    import requests
    from grafana_api.grafana_api import GrafanaClientError, GrafanaException

    api = grafana.connect()
    try:
        try:
            api.folder.get_folder(FOLDER_UID)
        except GrafanaClientError as error:
            if error.status_code != 404:
                raise
            api.folder.create_folder(FOLDER_TITLE, FOLDER_UID)
        done = [
            api.dashboard.update_dashboard(
                {"dashboard": board.as_json(), "folderUid": FOLDER_UID, "overwrite": True, "message": "draftwing"}
            )
            for board in BOARDS
        ]
    except GrafanaException as error:
        raise SetupError(f"Grafana at {grafana.url} answered {error.status_code}: {error.message}") from None
    except requests.RequestException as error:
        raise SetupError(f"Grafana at {grafana.url} can't be reached: {type(error).__name__}") from None
    return [f"{grafana.url.rstrip('/')}{each.get('url', '')}" for each in done]
