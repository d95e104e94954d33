"""A drafter that is right most of the time: a model with noise in its weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def weaker_model(model: Path, folder: Path) -> Path:
    """A copy of a model's folder in which every matrix carries 5 % of noise."""
    shutil.copytree(model, folder)
    generator = torch.Generator().manual_seed(0)
    tensors = load_file(folder / "model.safetensors")
    for tensor in tensors.values():
        if tensor.ndim > 1:
            tensor += torch.randn(tensor.shape, generator=generator) * tensor.std() * 0.05
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
