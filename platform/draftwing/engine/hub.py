"""From what the user named to a model folder on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from draftwing.config_models import ModelConfig
from draftwing.engine.model_folder import ModelFolder, open_folder
from draftwing.errors import ConfigError

Progress = Callable[[str], None]


def silent(_: str) -> None:
    """Progress that nobody reads."""


def resolve_model(model: ModelConfig, progress: Progress = silent) -> ModelFolder:
    """Find the model that `model.path` names: a folder, a GGUF file or a hub id. Loads no weights.

    progress is given one line at a time. ConfigError: the name or the files are wrong. SetupError: the hub can't be
    reached.
    """
    name = str(model.path)
    path = Path(name).expanduser()
    if path.is_dir():
        return open_folder(path, source=name)
    raise ConfigError(f"model.path {name} does not exist")
