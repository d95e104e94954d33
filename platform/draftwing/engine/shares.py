"""A rank's share of a target: the modules that stand where a parameter was cut, and what the ranks tell each other.

Each rank runs the same forward on the same rows. Where a product's inputs are cut, the partial results are summed;
where its outputs are, the next product takes them as they are, and only the logits are gathered, on rank 0. So hidden
states between layers are whole and equal on every rank. All calls of a group are made by all its ranks, in one order.

Shapes: N rows, V vocabulary, H hidden size.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.checkpoints.split import Split
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.runner import ModelRunner, Runner
from draftwing.errors import ConfigError


class Ranks(Protocol):
    """This process's place among the ranks that share a target."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def group(self) -> dist.ProcessGroup:
        """For hidden states, on the model's device."""
        ...

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers."""
        ...

    def leading(self, runner: ModelRunner, pool: BlockPool) -> Runner:
        """For rank 0: a runner that has all ranks do what it does."""
        ...


class Summed(nn.Module):
    """A product whose inputs are cut: every rank's part, summed, and the bias once."""

    def __init__(self, product: nn.Linear, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.bias = product.bias
        product.register_parameter("bias", None)
        self.product = product
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        partial: Tensor = self.product(x)
        dist.all_reduce(partial, group=self._group)
        return partial if self.bias is None else partial + self.bias


class Gathered(nn.Module):
    """A product whose outputs are cut, for the logits: whole on rank 0, this rank's part on the others."""

    def __init__(self, product: nn.Linear, outputs: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.product = product
        self.in_features, self.out_features = product.in_features, outputs
        self._group = group
        self._widest = -(-outputs // group.size())

    def forward(self, x: Tensor) -> Tensor:
        part: Tensor = self.product(x)
        if not part.numel():
            return part.new_empty(*part.shape[:-1], self.out_features)
        part = pad(part, (0, self._widest - part.shape[-1])).contiguous()
        first = dist.get_rank(self._group) == 0
        parts = [torch.empty_like(part) for _ in range(self._group.size())] if first else None
        dist.gather(part, parts, group=self._group, group_dst=0)
        return part if parts is None else torch.cat(parts, dim=-1)[..., : self.out_features]


class CutEmbedding(nn.Module):
    """An embedding whose rows are cut: each rank looks up its own tokens, and the rest of its rows are zero."""

    def __init__(self, table: nn.Embedding, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.table = table
        self._group = group
        self._first = dist.get_rank(group) * -(-table.num_embeddings // group.size())

    @property
    def weight(self) -> Tensor:
        return self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        local = tokens - self._first
        count = self.table.weight.shape[0]
        rows: Tensor = self.table(local.clamp(0, max(count - 1, 0)))
        rows = rows.masked_fill(((local < 0) | (local >= count))[..., None], 0)
        dist.all_reduce(rows, group=self._group)
        return rows


class WholeEnds(nn.Module):
    """A target's embedding and head, whole, for drafters that take them from it; read when first asked for.

    Made before the target is cut. folder: where its weights lie.
    """

    def __init__(self, model: Any, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        names = {module: name for name, module in model.named_modules()}
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        self._names = {"embedding": names[embedding], "head": names[head]}
        self._bare = {"embedding": _bare(embedding), "head": _bare(head)}
        self._stored = {part: _stored(module) for part, module in (("embedding", embedding), ("head", head))}
        self._folder, self._dtype, self._device = folder, dtype, device
        self._read: set[str] = set()

    def get_input_embeddings(self) -> nn.Module:
        return self._whole("embedding")

    def get_output_embeddings(self) -> nn.Module:
        return self._whole("head")

    def get_decoder(self) -> nn.Module:
        raise ConfigError(
            "this drafter is made of the target's own layers (method mtp), which lie in shares on several ranks; "
            "run the target on one rank, or use another drafter"
        )

    def _whole(self, part: str) -> nn.Module:
        module = self._bare[part]
        if part not in self._read:
            stored = open_checkpoint(str(self._folder))
            for key in self._stored[part]:
                name = f"{self._names[part]}.{key}"
                if name not in stored and part == "head":
                    name = f"{self._names['embedding']}.{key}"  # tied
                tensor = stored.read(name).to(self._device, self._dtype)
                module._parameters[key] = nn.Parameter(tensor, requires_grad=False)
            self._read.add(part)
        return module


def _bare(module: nn.Module) -> nn.Module:
    """A copy without weights, and without what transformers hangs on a module that is cut."""
    bare = copy.copy(module)
    bare._parameters = dict.fromkeys(module._parameters)
    vars(bare).pop("forward", None)
    return bare


def _stored(module: nn.Module) -> list[str]:
    return [key for key, parameter in module._parameters.items() if parameter is not None]


def cut_modules(model: Any, split: Split, rank: int, group: dist.ProcessGroup) -> None:
    """Turn a model that transformers has loaded in shares into one of plain tensors and the modules above.

    What transformers hangs on a module to the same end is taken off; only mixed experts keep it.
    """
    local: dict[int, nn.Parameter] = {}
    names = {module: name for name, module in model.named_modules()}
    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for key, child in list(parent.named_children()):
            cut = _take_local(child, local)
            name = f"{names[child]}.weight"
            style = split.style(name)
            if "experts" in names[child].split("."):
                continue
            vars(child).pop("forward", None)
            if split.is_narrowed(name):
                _narrow(child, split, rank)
            elif cut and isinstance(child, nn.Embedding):
                child.padding_idx = None  # it may lie in another share, and matters in training alone
                setattr(parent, key, CutEmbedding(child, group))
            elif cut and child is head:
                setattr(parent, key, Gathered(child, child.out_features, group))
            elif cut and style == "rowwise":
                setattr(parent, key, Summed(child, group))
            elif cut and style != "colwise":
                raise ConfigError(f"{names[child]} is cut {style}, which this version can't run")
            if isinstance(child, nn.Linear):
                child.out_features, child.in_features = child.weight.shape


def _take_local(module: nn.Module, local: dict[int, nn.Parameter]) -> bool:
    """Put this rank's part in the place of each distributed parameter; tied ones stay tied. False: there was none."""
    values: dict[str, Any] = dict(module._parameters)
    cut = {key: value for key, value in values.items() if isinstance(value, DTensor)}
    for key, value in cut.items():
        if id(value) not in local:
            local[id(value)] = nn.Parameter(value.to_local().contiguous(), requires_grad=False)
        module._parameters[key] = local[id(value)]
    return bool(cut)


def _narrow(product: Any, split: Split, rank: int) -> None:
    """Keep the one key/value head that this rank's query heads read."""
    heads = product.out_features // split.head_size
    first = rank * heads // split.ranks * split.head_size
    rows = slice(first, first + split.head_size)
    for key, parameter in list(product._parameters.items()):
        if parameter is not None:
            product._parameters[key] = nn.Parameter(parameter[rows].clone(), requires_grad=False)
