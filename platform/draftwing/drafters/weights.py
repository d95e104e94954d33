"""A published head's tensors, taken by name, in the drafter's form, with their shapes checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from draftwing.checkpoints.layouts import TOKEN_MAPS
from draftwing.drafters.base import CheckpointReader, TargetInfo
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

    def shape(self, name: str) -> tuple[int, ...]:
        """As stored; () where it isn't."""
        return self._checkpoint.shape(self._stored[name]) if name in self else ()

    def take(self, name: str, *shape: int | None, dtype: torch.dtype | None = None, integers: bool = False) -> Tensor:
        """The tensor, floats in dtype or the drafter's; None: any size. ConfigError where it is missing or another."""
        if name not in self._stored:
            raise ConfigError(f"the drafter's checkpoint lacks the tensor {name}")
        tensor = self._checkpoint.read(self._stored[name])
        got, known = tuple(tensor.shape), f"the drafter's tensor {self._stored[name]}"
        if len(got) != len(shape) or any(want not in (None, size) for size, want in zip(got, shape, strict=True)):
            expected = ", ".join("any" if want is None else str(want) for want in shape)
            raise ConfigError(f"{known} has shape {list(got)}; expected [{expected}]")
        if 0 in got:
            raise ConfigError(f"{known} has shape {list(got)}: it is empty")
        if tensor.is_floating_point() == integers:
            kind = "whole" if integers else "floating-point"
            raise ConfigError(f"{known} is of type {str(tensor.dtype).removeprefix('torch.')}; expected {kind} numbers")
        return tensor.to(self._device, torch.long if integers else dtype or self._dtype)

    def linear(self, name: str, inputs: int | None, outputs: int | None, bias: bool | None = False) -> nn.Linear:
        """bias None: as stored."""
        weight = self.take(f"{name}.weight", outputs, inputs)
        has_bias = bias or (bias is None and f"{name}.bias" in self)
        return linear_of(weight, self.take(f"{name}.bias", weight.shape[0]) if has_bias else None)

    def norm(self, *names: str, size: int) -> Tensor | None:
        """The first of these that is stored."""
        name = next((name for name in names if name in self), None)
        return None if name is None else self.take(name, size)

    def embedding(self, target: TargetInfo, size: int) -> Tensor | None:
        """Of width `size`; None where it is the target's. ConfigError where it can't be, or lacks tokens."""
        if "embed_tokens.weight" not in self:
            if target.hidden_size != size:
                raise ConfigError(
                    f"the drafter's hidden_size is {size}, but the target's embedding has {target.hidden_size}, and "
                    "the drafter has no embed_tokens.weight of its own"
                )
            return None
        own = self.take("embed_tokens.weight", None, size)
        if len(own) < target.vocab_size:
            raise ConfigError(
                f"the drafter's embed_tokens.weight has {len(own)} tokens; expected the target's {target.vocab_size}"
            )
        return own

    def head(self, target: TargetInfo, size: int) -> tuple[nn.Module, Tensor | None]:
        """The output layer for vectors of `size`, its own or the target's, and the target's id of each output."""
        if "lm_head.weight" in self:
            found: Any = self.linear("lm_head", size, None)
        else:
            model: Any = target.model
            found = model.get_output_embeddings()
            if found.in_features != size:
                raise ConfigError(
                    f"the drafter's hidden_size is {size}, but the target's head takes {found.in_features}, and the "
                    "drafter has no lm_head.weight of its own"
                )
        return found, self.target_ids(found.out_features, target.vocab_size)

    def target_ids(self, outputs: int, vocab_size: int) -> Tensor | None:
        """The target's id of each output, None where it is the same; `d2t` holds offsets. ConfigError: it can't be."""
        name = next((name for name in ("d2t", *TOKEN_MAPS) if name in self), None)
        if name is None:
            if outputs < vocab_size:
                raise ConfigError(
                    f"the drafter knows {outputs} tokens, its target {vocab_size}, and it has no d2t that maps them"
                )
            return None
        ids = self.take(name, outputs, integers=True)
        if name == "d2t":
            ids = ids + torch.arange(outputs, device=self._device)
        if ids.min() < 0 or ids.max() >= vocab_size or len(set(ids.tolist())) != len(ids):
            raise ConfigError(
                f"the drafter's {name} leads to ids from {int(ids.min())} to {int(ids.max())}; expected different ids "
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
