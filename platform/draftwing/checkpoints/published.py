"""A model or drafter as it was published: its folder, its configuration, and its tensors by name, none of them read.

Loads no torch, except for archives of before torch 1.6, which only torch can read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwing.checkpoints.archive_header import read_archive_header
from draftwing.checkpoints.cache import Progress, silent
from draftwing.checkpoints.model_folder import read_json
from draftwing.checkpoints.weight_files import INDEX, SINGLE, StoredTensor, read_header, read_weight_files
from draftwing.errors import ConfigError

ARCHIVES = (".bin", ".pt", ".pth")
BESIDE = "mask_embedding.pt"  # published beside safetensors, and holds what they lack
FURTHER_EXPERT = re.compile(r"\.experts\.[1-9]\d*\.")
NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state", "random_states")


@dataclass(frozen=True, slots=True)
class Published:
    """source: what the user named. files: the tensors of each weight file, by its header."""

    source: str
    folder: Path
    config: Mapping[str, Any]
    files: Mapping[Path, Mapping[str, StoredTensor]]

    @property
    def tensors(self) -> dict[str, StoredTensor]:
        return {name: tensor for tensors in self.files.values() for name, tensor in tensors.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """By name; of the experts of a layer, which are alike and thousands, the first."""
        return {name: t.shape for name, t in self.tensors.items() if not FURTHER_EXPERT.search(name)}


def find_folder(path: str, revision: str | None = None, progress: Progress = silent) -> Path:
    """The folder of what `drafters.N.path` names, downloaded where it is a hub id. ConfigError, SetupError."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    from draftwing.checkpoints.download import HUB_ID, Hub, download

    if not HUB_ID.fullmatch(path):
        raise ConfigError(f"{path} does not exist; accepted: a folder or a hub id (org/name)")
    return download(path, revision, Hub.from_environment(), progress, drafter=True)[0]


def read_headers(path: str, revision: str | None = None, progress: Progress = silent) -> Published:
    """As `read_published`, but a hub id's weights are not downloaded where their headers can be had alone."""
    if not Path(path).expanduser().exists():
        from draftwing.checkpoints.download import HUB_ID, Hub
        from draftwing.checkpoints.remote_headers import remote_headers

        if HUB_ID.fullmatch(path) and (found := remote_headers(path, revision, Hub.from_environment())):
            config, files = found
            _refuse_twice(path, files)
            return Published(path, Path(path), config, files)
    return read_published(path, revision, progress)


def read_published(path: str, revision: str | None = None, progress: Progress = silent) -> Published:
    """ConfigError, SetupError: as for a model, naming what is wrong."""
    folder = find_folder(path, revision, progress)
    if not (folder / "config.json").is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        hint = f"; it holds {ggufs[0].name}: name that file itself" if ggufs else ""
        raise ConfigError(f"{folder} has no config.json, so it is no checkpoint of a model or drafter{hint}")
    config = read_json(folder / "config.json")
    found = _headers(folder, progress)
    _refuse_twice(str(folder), found)
    return Published(path, folder, config, found)


def _refuse_twice(where: str, files: Mapping[Path, Mapping[str, StoredTensor]]) -> None:
    names: set[str] = set()
    for file, tensors in files.items():
        if twice := names & tensors.keys():
            raise ConfigError(f"{where}: tensor {min(twice)} is in {file.name} and in another file too; keep one")
        names |= tensors.keys()


def _headers(folder: Path, progress: Progress) -> dict[Path, Mapping[str, StoredTensor]]:
    """Of a folder's safetensors files and what is published beside them, else of its torch archives. ConfigError."""
    found: dict[Path, Mapping[str, StoredTensor]] = {file: _archive(file, progress) for file in folder.glob(BESIDE)}
    if (folder / SINGLE).is_file() or (folder / INDEX).is_file():
        weights = read_weight_files(folder)
        return found | dict(zip(weights.files, weights.held, strict=True))
    if files := sorted(folder.glob("*.safetensors")):
        return found | {file: read_header(file)[1] for file in files}
    archives = [
        path for path in sorted(folder.iterdir()) if path.suffix in ARCHIVES and not path.name.startswith(NO_WEIGHTS)
    ]
    if not archives:
        raise ConfigError(f"{folder} has no weights; expected *.safetensors, or *.bin or *.pt")
    return {file: _archive(file, progress) for file in archives}


def _archive(file: Path, progress: Progress) -> dict[str, StoredTensor]:
    found = read_archive_header(file)
    if found is None:
        from draftwing.checkpoints.drafter import converted  # loads torch

        return read_header(converted(file, progress))[1]
    return found
