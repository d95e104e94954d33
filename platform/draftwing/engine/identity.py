"""What a profile was measured for: the fields that must be the same where it is used."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import torch

from draftwing import __version__
from draftwing.checkpoints.hub import resolve_model
from draftwing.config_models import Config
from draftwing.engine.attention import NAME
from draftwing.engine.step import Engine

PATH_OPTIONS = ("path",)


def profile_key(config: Config, engine: Engine) -> dict[str, str]:
    """Of an engine that was built from this config. Values are text; the names are those of the profile's key."""
    device = _device(engine)
    return {
        "device": _device_name(device),
        "driver": str(torch.version.cuda) if device.type == "cuda" else "",
        "threads": str(torch.get_num_threads()) if device.type == "cpu" else "",
        "engine_version": __version__,
        "model_digest": resolve_model(config.model).digest[:16],
        "drafter": drafter_text(config),
        "parallel": f"{config.parallel.tensor}x{config.parallel.expert}x{config.parallel.pipeline}",
        "dtype": _dtype(engine, config),
        "quantization": config.model.quantization or "",
        "attention": NAME,
        "kernels": _kernels(engine),
        "captured": "",
    }


def drafter_text(config: Config) -> str:
    """Methods and options of all drafters, names left out; a checkpoint stands for itself by its config's digest."""
    texts = []
    for entry in config.drafters:
        options = [f"{name}={_option(name, value)}" for name, value in sorted(entry.options.items())]
        texts.append(f"{entry.method}({','.join(options)})")
    return "+".join(texts)


def _option(name: str, value: object) -> str:
    """A folder's path says nothing on another machine; the files in it do."""
    if name not in PATH_OPTIONS or not isinstance(value, str) or not (folder := Path(value).expanduser()).is_dir():
        return str(value)
    total = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file():
            total.update(f"{file.name} {file.stat().st_size}\n".encode())
            if file.suffix == ".json":
                total.update(file.read_bytes())
    return total.hexdigest()[:16]


def _device(engine: Engine) -> torch.device:
    return getattr(engine.runner, "device", torch.device("cpu"))


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _dtype(engine: Engine, config: Config) -> str:
    pages = getattr(engine.runner, "pages", None)
    return str(pages[0][0].dtype).removeprefix("torch.") if pages else config.model.dtype


def _kernels(engine: Engine) -> str:
    """The forms of the target's linear layers, which decide how its cost grows with rows."""
    model = getattr(engine.runner, "model", None)
    if model is None:
        return ""
    return "+".join(sorted({type(m).__name__ for m in model.modules() if type(m).__name__.endswith("Linear")}))
