"""The block drafters keep the contract: golden heads, whose features are drawn from the tokens they follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.drafters.base import FeatureRows, SequenceView, TargetInfo
from draftwing.drafters.block_drafter import BlockDrafter
from draftwing.testing import drafter_contract
from draftwing.testing.drafter_contract import (
    CHAIN,
    CONTEXT_LENGTH,
    VOCAB_SIZE,
    DrafterContract,
    Features,
    MakeDrafter,
    Start,
)

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
CASES = {"dflash_full": "dflash", "dflash_swa_causal": "dflash", "dflash2": "dflash2", "dspark_vanilla": "dspark"}
HIDDEN, LAYERS, ROWS = 48, 8, 192
BLOCK_TOKENS = 4
BLOCKS_EACH = (CONTEXT_LENGTH + 64) // BLOCK_TOKENS


class TinyTarget(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.lm_head = nn.Embedding(ROWS, HIDDEN), nn.Linear(HIDDEN, ROWS, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head


INFO = TargetInfo(
    vocab_size=VOCAB_SIZE,
    context_length=CONTEXT_LENGTH,
    hidden_size=HIDDEN,
    layers=LAYERS,
    model=TinyTarget(),
    compile=False,
)


class Stored:
    """A golden head, changed."""

    def __init__(self, case: str, change: Callable[[dict[str, Tensor]], None] = lambda _: None, **config: Any) -> None:
        source = open_checkpoint(str(GOLDENS / case / "drafter"))
        self.config: Mapping[str, Any] = {**source.config, **config}
        self.tensors = {name: source.read(name) for name in source.names()}
        change(self.tensors)
        self.unread = set(self.tensors)

    def names(self) -> list[str]:
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def read(self, name: str) -> Tensor:
        self.unread.discard(name)
        return self.tensors[name]

    def skip(self, names: Iterable[str]) -> None:
        self.unread.difference_update(names)


def drafter_of(case: str, threshold: float = 0.0, **config: Any) -> BlockDrafter:
    drafter = BlockDrafter(CASES[case], threshold)
    drafter.bind(INFO, Stored(case, **config))
    drafter.reserve(drafter_contract.LIVES * drafter_contract.BLOCKS, drafter_contract.BLOCK_TOKENS)
    return drafter


@cache
def feature(token: int, position: int) -> Tensor:
    return torch.randn(3 * HIDDEN, generator=torch.Generator().manual_seed(1000 * position + token))


class BlockContract(DrafterContract):
    case: str

    @pytest.fixture
    def make_drafter(self) -> MakeDrafter:
        return lambda: drafter_of(self.case)

    @pytest.fixture
    def features(self) -> Features:
        tables: dict[int, list[int]] = {}

        def rows(sequence: SequenceView, start: int, stop: int) -> FeatureRows:
            if not sequence.table:
                place = len(tables) % 4
                sequence.table.extend(range(place * BLOCKS_EACH, (place + 1) * BLOCKS_EACH))  # type: ignore[attr-defined]
                tables[len(tables)] = sequence.table  # type: ignore[assignment]
            found = torch.stack([feature(sequence.tokens[i], i) for i in range(start, stop)])
            return FeatureRows(start, torch.chunk(found, 3, -1))

        return rows

    def test_something_is_drafted(self, live: Start) -> None:
        life = live(1)
        for _ in range(5):
            assert len(life.step()) == CHAIN.nodes


class TestDFlash(BlockContract):
    case = "dflash_full"


class TestDFlashOfWindows(BlockContract):
    case = "dflash_swa_causal"


class TestDFlash2(BlockContract):
    case = "dflash2"


class TestDSpark(BlockContract):
    case = "dspark_vanilla"
