"""The drafter contract for Medusa, on heads made at random."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from draftwing.drafters.base import FeatureRows, SequenceView, TargetInfo
from draftwing.drafters.medusa import MedusaOptions
from draftwing.drafters.medusa_drafter import MedusaDrafter
from draftwing.testing.drafter_contract import CONTEXT_LENGTH, VOCAB_SIZE, DrafterContract, Features, MakeDrafter

HIDDEN, HEADS = 16, 4


class Stored:
    """A checkpoint in memory."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.config: Mapping[str, Any] = {}
        self._tensors = tensors

    def names(self) -> Iterable[str]:
        return self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def skip(self, names: Iterable[str]) -> None:
        pass


def random_heads() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    found = {}
    for head in range(HEADS):
        found[f"{head}.0.linear.weight"] = torch.randn(HIDDEN, HIDDEN)
        found[f"{head}.0.linear.bias"] = torch.randn(HIDDEN)
        found[f"{head}.1.weight"] = torch.randn(VOCAB_SIZE, HIDDEN)
    return found


class TestMedusa(DrafterContract):
    @pytest.fixture(params=[None, [[0], [1], [0, 0], [0, 1], [0, 0, 0], [0, 0, 0, 0]]])
    def make_drafter(self, request: pytest.FixtureRequest) -> MakeDrafter:
        def make() -> MedusaDrafter:
            drafter = MedusaDrafter(MedusaOptions(choices=request.param))
            target = TargetInfo(VOCAB_SIZE, CONTEXT_LENGTH, eos_token_ids=(0,), hidden_size=HIDDEN, layers=2)
            drafter.bind(target, Stored(random_heads()))
            return drafter

        return make

    @pytest.fixture
    def features(self) -> Features:
        def rows(sequence: SequenceView, start: int, stop: int) -> FeatureRows:
            seeds = [hash(tuple(sequence.tokens[: at + 1])) % 2**32 for at in range(start, stop)]
            hidden = [np.random.default_rng(seed).standard_normal(HIDDEN, dtype=np.float32) for seed in seeds]
            return FeatureRows(start, (torch.from_numpy(np.array(hidden)),))

        return rows
