"""What the tests of published heads' variants share: a tiny target, covers of flags, and how a draft is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import nn


class TinyTarget(nn.Module):
    """An embedding and a head that drafters share."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Embedding(vocab_size, hidden_size)
        self.head = nn.Linear(hidden_size, vocab_size, bias=False)
        self.head.weight.data *= 3
        self.requires_grad_(False)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def covering(
    factors: Mapping[str, Sequence[Any]],
    sensible: Callable[[dict[str, Any]], bool] = lambda _: True,
    draws: int = 20_000,
) -> Iterator[dict[str, Any]]:
    """Drawn rows, each of which has a pair of values that none before had; what makes no sense is never met."""
    draw, seen = np.random.default_rng(0), set[Any]()
    for _ in range(draws):
        row = {name: values[int(draw.integers(len(values)))] for name, values in factors.items()}
        pairs = set(combinations(row.items(), 2))
        if not pairs <= seen and sensible(row):
            seen |= pairs
            yield row
