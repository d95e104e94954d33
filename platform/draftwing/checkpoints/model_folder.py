"""A model folder on disk: its config, its files, and a digest that tells two models apart."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from draftwing.checkpoints.supported import check_config
from draftwing.checkpoints.weight_files import WeightFiles, read_weight_files
from draftwing.errors import ConfigError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
# Small files that change what the model says or how text becomes tokens.
IDENTITY_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
SAMPLES, SAMPLE_BYTES = 256, 4096


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A checked model on this machine.

    source: what the user named (folder, hub id, GGUF file). revision: the hub commit, None for local files.
    digest: the same for the same model wherever it lies (64 hex digits).
    """

    path: Path
    source: str
    revision: str | None
    digest: str
    has_tokenizer: bool


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model's file; ConfigError names the file and line."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not valid JSON (line {error.lineno}: {error.msg}); download it again") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text; download it again") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a JSON {type(value).__name__}; expected an object")
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder; ConfigError tells what the folder is instead, where that can be seen."""
    if not folder.is_dir():
        raise ConfigError(f"model.path {folder} is not a folder")
    if (folder / "adapter_config.json").is_file():
        base = read_json(folder / "adapter_config.json").get("base_model_name_or_path", "its base model")
        raise ConfigError(
            f"{folder} is an adapter (LoRA) for {base}; adapters can't be served yet: merge it into the base model "
            "(peft: merge_and_unload(), then save_pretrained) and name the merged folder"
        )
    if not (folder / "config.json").is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        hint = f"; it holds {ggufs[0].name}: name that file itself" if ggufs else ""
        raise ConfigError(f"model.path {folder} has no config.json, so it is no model folder{hint}")
    return read_json(folder / "config.json")


def add_samples(total: hashlib._Hash, file: BinaryIO, start: int, end: int) -> None:
    """Hash evenly spaced samples of the bytes from start to end: milliseconds for any size."""
    for sample in range(SAMPLES):
        file.seek(start + (end - start) * sample // SAMPLES)
        total.update(file.read(min(SAMPLE_BYTES, end - file.tell())))


def _digest(folder: Path, weights: WeightFiles) -> str:
    """Over the small files, the weight headers and samples of the weights.

    The samples tell a fine-tuned model from its base, whose headers are the same.
    """
    total = hashlib.sha256(b"draftwing model 1")

    def add(name: str, data: bytes) -> None:
        total.update(f"{name}\0{len(data)}\0".encode())
        total.update(data)

    for name in IDENTITY_FILES:
        if (folder / name).is_file():
            add(name, (folder / name).read_bytes())
    for path, header in zip(weights.files, weights.headers, strict=True):
        add(path.name, header)
        with path.open("rb") as file:
            add_samples(total, file, 8 + len(header), path.stat().st_size)
    return total.hexdigest()


def inspect(folder: Path, *, trust_remote_code: bool = False) -> tuple[dict[str, Any], WeightFiles]:
    """config.json and weight headers of a folder that can be served; ConfigError otherwise. Milliseconds."""
    config = read_config(folder)
    check_config(config, str(folder), trust_remote_code=trust_remote_code)
    return config, read_weight_files(folder)


def open_folder(
    path: Path, *, source: str, revision: str | None = None, trust_remote_code: bool = False
) -> ModelFolder:
    """Check a model folder's files (weights by their headers) and identify it."""
    folder = path.expanduser().absolute()
    _, weights = inspect(folder, trust_remote_code=trust_remote_code)
    has_tokenizer = any((folder / name).is_file() for name in TOKENIZER_FILES)
    return ModelFolder(folder, source, revision, _digest(folder, weights), has_tokenizer)
