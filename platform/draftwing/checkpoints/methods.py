"""The method of every configured drafter, by its checkpoint: told where an entry leaves it out, else compared."""

from __future__ import annotations

from pathlib import Path

from draftwing.checkpoints.cache import Progress, silent
from draftwing.checkpoints.published import read_published
from draftwing.checkpoints.resolve import Layout, check_method, resolve
from draftwing.config_models import FROM_CHECKPOINT, Config, DrafterConfig
from draftwing.errors import ConfigError

# Those whose checkpoints `resolve` knows; plug-ins read their own.
READERS = ("eagle", "eagle2", "eagle3", "mtp", "medusa", "dflash", "dflash2", "dspark")


def settle_methods(config: Config, progress: Progress = silent) -> Config:
    """The config with each drafter's method named. Reads headers alone, after downloading what isn't there.

    ConfigError: a checkpoint says another method than its entry, says none, or could be read by several.
    """
    entries = [_settled(entry, i, config.model.path, progress) for i, entry in enumerate(config.drafters)]
    return config.model_copy(update={"drafters": entries})


def layout_of(path: str, revision: str | None = None, progress: Progress = silent) -> Layout:
    """What the checkpoint is that a folder or hub id names. ConfigError, SetupError."""
    published = read_published(path, revision, progress)
    return resolve(published.config, published.shapes, path)


def _settled(entry: DrafterConfig, index: int, target: str, progress: Progress) -> DrafterConfig:
    path, revision = entry.options.get("path") or target, entry.options.get("revision")
    left_out = entry.method == FROM_CHECKPOINT
    local = Path(str(path)).expanduser()
    if local.is_file() and left_out:  # GGUF, which holds whole models
        return entry.model_copy(update={"method": "draft_model"})
    if not (left_out or entry.method in READERS or (entry.method == "draft_model" and local.is_dir())):
        return entry
    layout = layout_of(str(path), revision, progress)
    key = f"drafters.{index}.method"
    if not left_out:
        check_method(entry.method, layout, key, str(path))
        return entry
    if layout.role == "target" and len(layout.methods) > 1:
        raise ConfigError(
            f"{key} is missing, and the checkpoint {path} can be read by several; name one of "
            f"{', '.join(layout.methods)}"
        )
    progress(f"drafter {entry.name}: method {layout.method} ({layout.dialect}), by {layout.decided[0]}")
    return entry.model_copy(update={"method": layout.method})
