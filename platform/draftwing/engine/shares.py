"""A rank's share of a target: the modules that stand where a parameter was cut, and what the ranks tell each other.

Each rank runs the same forward on the same rows. Where a product's inputs are cut, the partial results are summed;
where its outputs are, the next product takes them as they are, and only the logits are gathered, on rank 0. So hidden
states between layers are whole and equal on every rank. All calls of a group are made by all its ranks, in one order.

Shapes: N rows, V vocabulary, H hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad

from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.runner import ModelRunner, Runner
from draftwing.engine.split import Split
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
        product.bias = None
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
    """A cut target's embedding and head, whole, for drafters that take them; read when first asked for.

    embedding, head: the target's modules before they were cut. read: the stored tensor of a module's weight.
    """

    def __init__(self, embedding: nn.Module, head: nn.Module, read: Callable[[nn.Module], Tensor]) -> None:
        super().__init__()
        self._cut = {"embedding": embedding, "head": head}
        self._read = read
        self._whole: dict[str, nn.Module] = {}

    def get_input_embeddings(self) -> nn.Module:
        return self._make("embedding")

    def get_output_embeddings(self) -> nn.Module:
        return self._make("head")

    def _make(self, name: str) -> nn.Module:
        if name not in self._whole:
            module = copy.copy(self._cut[name])
            module._parameters = dict(module._parameters)
            weight = self._read(self._cut[name])
            module._parameters["weight"] = nn.Parameter(weight, requires_grad=False)
            self._whole[name] = module
        return self._whole[name]


def cut_modules(model: Any, split: Split, rank: int, group: dist.ProcessGroup) -> None:
    """Turn a model that transformers has loaded in shares into one of plain tensors and the modules above.

    What transformers hangs on a module to the same end is taken off; only mixed experts keep it.
    """
    local: dict[int, nn.Parameter] = {}
    names = {module: name for name, module in model.named_modules()}
    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for key, child in list(parent.named_children()):
            plain = _with_local_weights(child, local)
            style = split.style(f"{names[child]}.weight")
            if not isinstance(child, nn.Linear | nn.Embedding) and "experts" in names[child]:
                continue
            vars(child).pop("forward", None)
            if isinstance(child, nn.Embedding) and style == "embedding_rowwise":
                child.padding_idx = None  # it may lie in another share, and matters in training alone
                setattr(parent, key, CutEmbedding(child, group))
            elif isinstance(child, nn.Linear) and style is not None:
                _place(parent, key, child, split, names[child], rank, group, child is head)
            elif plain and style is not None:
                raise ConfigError(f"a share of {names[child]} ({type(child).__name__}, {style}) can't be run")


def _with_local_weights(module: nn.Module, local: dict[int, nn.Parameter]) -> bool:
    """Replace distributed parameters by this rank's part of them; tied ones stay tied. True if there were any."""
    found = False
    for key, parameter in list(module._parameters.items()):
        if isinstance(parameter, DTensor):
            if id(parameter) not in local:
                local[id(parameter)] = nn.Parameter(parameter.to_local().contiguous(), requires_grad=False)
            module._parameters[key] = local[id(parameter)]
            found = True
    return found


def _place(
    parent: nn.Module,
    key: str,
    product: nn.Linear,
    split: Split,
    name: str,
    rank: int,
    group: dist.ProcessGroup,
    is_head: bool,
) -> None:
    if split.is_narrowed(f"{name}.weight"):
        _narrow(product, split, rank)
    elif is_head:
        setattr(parent, key, Gathered(product, product.out_features, group))
    elif split.style(f"{name}.weight") == "rowwise":
        setattr(parent, key, Summed(product, group))
    product.out_features, product.in_features = product.weight.shape


def _narrow(product: nn.Linear, split: Split, rank: int) -> None:
    """Keep the one key/value head that this rank's query heads read."""
    heads = product.out_features // split.head_size
    first = rank * heads // split.ranks * split.head_size
    rows = slice(first, first + split.head_size)
    for key, parameter in list(product._parameters.items()):
        if parameter is not None:
            product._parameters[key] = nn.Parameter(parameter[rows].clone(), requires_grad=False)
