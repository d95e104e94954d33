"""A drafter's published checkpoint: config.json and tensors by name, from a folder or a hub id.

Published heads come as safetensors (one file, shards, any name) or as torch archives. The latter are read with
`weights_only`, converted to safetensors once, and kept in the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from draftwing.checkpoints.cache import Progress, cache_root, made_whole, only_one, silent
from draftwing.checkpoints.model_folder import add_samples
from draftwing.checkpoints.published import ARCHIVES, read_published
from draftwing.checkpoints.weight_files import SINGLE, StoredTensor, read_header
from draftwing.errors import ConfigError


class Checkpoint:
    """Tensors are read from disk when asked for. It remembers which were, see `refuse_unread`."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], files: Mapping[Path, Mapping[str, StoredTensor]]
    ) -> None:
        self.folder = folder
        self.config = config
        self._stored = {name: tensor for tensors in files.values() for name, tensor in tensors.items()}
        self._file = {name: path for path, tensors in files.items() for name in tensors}
        self._known: set[str] = set()

    def names(self) -> Iterable[str]:
        return self._stored.keys()

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def shape(self, name: str) -> tuple[int, ...]:
        """The stored shape, without reading the tensor. ConfigError if it isn't there."""
        self._need(name)
        return self._stored[name].shape

    def read(self, name: str) -> Tensor:
        """The tensor as stored, on the CPU. ConfigError if it isn't there."""
        self._need(name)
        self._known.add(name)
        with safe_open(self._file[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def skip(self, names: Iterable[str]) -> None:
        """These are known and not needed (what only training uses, the target's own weights)."""
        self._known.update(names)

    def refuse_unread(self) -> None:
        """ConfigError if there are tensors that were neither read nor skipped (rule R4)."""
        if odd := sorted(self._stored.keys() - self._known):
            shown = ", ".join(f"{name} {list(self._stored[name].shape)}" for name in odd[:5])
            more = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
            raise ConfigError(
                f"{self.folder} holds tensors that this drafting method does not know: {shown}{more}; "
                "leaving them out would draft badly without a sign of it, so name the method they belong to"
            )

    def _need(self, name: str) -> None:
        if name not in self._stored:
            raise ConfigError(
                f"{self.folder} has no tensor {name}; it has {', '.join(sorted(self._stored)[:8])}"
                f"{', ...' if len(self._stored) > 8 else ''}"
            )


def open_checkpoint(path: str, revision: str | None = None, progress: Progress = silent) -> Checkpoint:
    """Open what `drafters.N.path` names. ConfigError, SetupError: as for a model, naming what is wrong."""
    published = read_published(path, revision, progress)
    files = {}
    for file, tensors in published.files.items():
        safe = converted(file, progress) if file.suffix in ARCHIVES else file
        files[safe] = tensors if safe is file else read_header(safe)[1]
    return Checkpoint(published.folder, published.config, files)


def converted(archive: Path, progress: Progress) -> Path:
    """The archive as a safetensors file in the cache, made at its first use."""
    size = archive.stat().st_size
    total = hashlib.sha256(f"draftwing drafter 1 {size}".encode())
    with archive.open("rb") as file:
        add_samples(total, file, 0, size)
    folder = cache_root() / "drafters" / total.hexdigest()[:32]
    if not folder.is_dir():
        with only_one(folder, progress):
            if not folder.is_dir():
                progress(f"converting {archive} to safetensors")
                tensors = _read_archive(archive)
                with made_whole(folder) as work:
                    save_file(tensors, work / SINGLE)
    return folder / SINGLE


def _read_archive(archive: Path) -> dict[str, Tensor]:
    try:
        held = torch.load(archive, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler's own errors are of no common class
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"{archive} can't be read as tensors alone ({reason}); it is damaged or holds Python objects, which are "
            "never loaded: take a revision with safetensors"
        ) from error
    if isinstance(held, Tensor):
        held = {archive.stem: held}
    if not isinstance(held, dict) or not all(isinstance(value, Tensor) for value in held.values()):
        raise ConfigError(f"{archive} holds a {type(held).__name__} of other things than tensors; expected tensors")
    return {str(name): value.contiguous().clone() for name, value in held.items()}
