"""A model's config.json without its weights: what planning needs. The sizes of some large models are shipped."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from draftwing.checkpoints.cache import Progress, silent
from draftwing.checkpoints.download import HUB_ID, Hub, config_of
from draftwing.checkpoints.hub import DEMO_MODEL, demo_model
from draftwing.checkpoints.model_folder import read_config
from draftwing.errors import ConfigError, SetupError


def known_config(name: str) -> dict[str, Any] | None:
    """The published sizes of a hub id; None for a model that isn't shipped."""
    text = resources.files("draftwing.checkpoints").joinpath("known_models.json").read_text(encoding="utf-8")
    for entry in json.loads(text)["models"]:
        if name in entry["names"]:
            config: dict[str, Any] = entry["config"]
            return config
    return None


def find_config(
    name: str, revision: str | None = None, tell: Progress = silent, *, offline: bool = False
) -> dict[str, Any]:
    """config.json of a folder or hub id; no weights need be there.

    ConfigError: nothing of that name. SetupError: the hub can't be reached and the model's sizes are not shipped.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return read_config(path)
    if name == DEMO_MODEL:
        return read_config(demo_model(tell))
    if path.suffix == ".gguf" or not HUB_ID.fullmatch(name):
        raise ConfigError(f"{name} is neither a folder with a config.json nor a hub id (org/name)")
    shipped = known_config(name)
    if shipped is not None and revision is None:
        return shipped
    try:
        return config_of(name, revision, Hub.from_environment(offline=offline))
    except SetupError as error:
        if shipped is None:
            raise
        tell(f"{error}; planning with the sizes that were published for {name}")
        return shipped
