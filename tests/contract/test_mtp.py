"""Multi-token prediction modules keep the contract of drafters, with random weights: it is about their state."""

from __future__ import annotations

import pytest
import torch

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.drafters.base import FeatureRows, SequenceView, TargetInfo
from draftwing.drafters.mtp import MtpOptions
from draftwing.drafters.mtp_drafter import MtpDrafter
from draftwing.testing.drafter_contract import (
    BLOCK_TOKENS,
    BLOCKS,
    CONTEXT_LENGTH,
    LIVES,
    VOCAB_SIZE,
    DrafterContract,
    Features,
    MakeDrafter,
)
from tests.tiny_mtp import Made, make

MADE = {"mimo": MtpOptions(), "deepseek, two": MtpOptions(tree="dynamic")}


@pytest.fixture(scope="module", params=MADE)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(request.param, tmp_path_factory.mktemp("mtp"), vocab=VOCAB_SIZE)


class TestMtp(DrafterContract):
    @pytest.fixture
    def make_drafter(self, made: Made, request: pytest.FixtureRequest) -> MakeDrafter:
        def new() -> MtpDrafter:
            drafter = MtpDrafter(MADE[request.node.callspec.params["made"]])
            config = made.model.config
            drafter.bind(
                TargetInfo(
                    VOCAB_SIZE,
                    CONTEXT_LENGTH,
                    (0,),
                    hidden_size=config.hidden_size,
                    layers=config.num_hidden_layers,
                    model=made.model,
                ),
                open_checkpoint(str(made.folder)),
            )
            drafter.reserve(LIVES * BLOCKS, BLOCK_TOKENS)
            return drafter

        return new

    @pytest.fixture
    def features(self, made: Made) -> Features:
        def rows(sequence: SequenceView, start: int, stop: int) -> FeatureRows:
            hidden = []
            for at in range(start, stop):
                seed = hash(tuple(sequence.tokens[: at + 1])) % 2**31
                hidden.append(torch.randn(made.model.config.hidden_size, generator=torch.Generator().manual_seed(seed)))
            return FeatureRows(start, (torch.stack(hidden),))

        return rows
