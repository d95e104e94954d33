"""A published head's tensors, taken by name, in the drafter's form, with their shapes checked."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from draftwing.drafters.base import CheckpointReader
from draftwing.errors import ConfigError


class Weights:
    """aliases: other names that published files use, prefix by prefix."""

    def __init__(
        self, checkpoint: CheckpointReader, device: torch.device, dtype: torch.dtype, aliases: Mapping[str, str]
    ) -> None:
        self._checkpoint = checkpoint
        self._device, self._dtype = device, dtype
        self._stored = {_renamed(name, aliases): name for name in checkpoint.names()}

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def take(self, name: str, *shape: int | None, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor, floats in dtype or the drafter's; None: any size. ConfigError where it is missing or another."""
        if name not in self._stored:
            raise ConfigError(f"the drafter's checkpoint lacks the tensor {name}")
        tensor = self._checkpoint.read(self._stored[name])
        got = tuple(tensor.shape)
        if len(got) != len(shape) or any(want not in (None, size) for size, want in zip(got, shape, strict=True)):
            expected = ", ".join("any" if want is None else str(want) for want in shape)
            raise ConfigError(f"the drafter's tensor {self._stored[name]} has shape {list(got)}; expected [{expected}]")
        if not tensor.is_floating_point():
            return tensor.to(self._device)
        return tensor.to(self._device, dtype or self._dtype)

    def linear(self, name: str, inputs: int | None, outputs: int | None, bias: bool | None = False) -> nn.Linear:
        """bias None: as stored."""
        weight = self.take(f"{name}.weight", outputs, inputs)
        has_bias = bias or (bias is None and f"{name}.bias" in self)
        return linear_of(weight, self.take(f"{name}.bias", weight.shape[0]) if has_bias else None)

    def get(self, *names: str) -> Tensor | None:
        """The first of these that is stored, of any shape."""
        name = next((name for name in names if name in self), None)
        return None if name is None else self._checkpoint.read(self._stored[name]).to(self._device, self._dtype)

    def target_ids(self, outputs: int, vocab_size: int) -> Tensor | None:
        """The target's id of each output, from `d2t`, which holds offsets; None without. ConfigError: they can't be."""
        if "d2t" not in self:
            return None
        ids = self.take("d2t", outputs).long() + torch.arange(outputs, device=self._device)
        if ids.min() < 0 or ids.max() >= vocab_size or len(set(ids.tolist())) != len(ids):
            raise ConfigError(
                f"the drafter's d2t leads to ids from {int(ids.min())} to {int(ids.max())}; expected different ids "
                f"from 0 to {vocab_size - 1}"
            )
        return ids

    def count(self, prefix: str) -> int:
        """Modules that are numbered below a prefix, as in `layers.0`, `layers.1`."""
        inside = (name.removeprefix(f"{prefix}.") for name in self._stored if name.startswith(f"{prefix}."))
        parts = [name.split(".")[0] for name in inside]
        return max((int(part) + 1 for part in parts if part.isdecimal()), default=0)


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    with torch.device("meta"):
        module = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    module.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        module.bias = nn.Parameter(bias, requires_grad=False)
    return module


def _renamed(name: str, aliases: Mapping[str, str]) -> str:
    for prefix, ours in aliases.items():
        if name.startswith(prefix):
            return ours + name.removeprefix(prefix)
    return name
