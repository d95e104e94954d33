"""EAGLE heads keep the contract of drafters, with random weights: it is about their state, not their skill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from draftwing.drafters.base import FeatureRows, SequenceView, TargetInfo
from draftwing.drafters.eagle import Eagle2Options, Eagle3Options, EagleOptions
from draftwing.drafters.eagle_drafter import EagleDrafter
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

HIDDEN, WIDE, LAYERS = 16, 24, 6
CONFIG = {"hidden_size": HIDDEN, "num_attention_heads": 2, "num_key_value_heads": 1, "bias": False}


class Target(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCAB_SIZE, HIDDEN), nn.Linear(HIDDEN, VOCAB_SIZE)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.head


class Made:
    """A checkpoint of random tensors."""

    def __init__(self, version: int) -> None:
        self.config: Mapping[str, Any] = CONFIG
        width = 2 * HIDDEN if version == 3 else HIDDEN
        layer = "midlayer" if version == 3 else "layers.0"
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (HIDDEN, 3 * HIDDEN if version == 3 else 2 * HIDDEN),
            f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
            f"{layer}.self_attn.q_proj.weight": (HIDDEN, width),
            f"{layer}.self_attn.k_proj.weight": (HIDDEN // 2, width),
            f"{layer}.self_attn.v_proj.weight": (HIDDEN // 2, width),
            f"{layer}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{layer}.mlp.gate_proj.weight": (WIDE, HIDDEN),
            f"{layer}.mlp.up_proj.weight": (WIDE, HIDDEN),
            f"{layer}.mlp.down_proj.weight": (HIDDEN, WIDE),
        }
        if version == 3:
            shapes |= dict.fromkeys(("midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight"), (HIDDEN,))
            shapes |= {"norm.weight": (HIDDEN,), "lm_head.weight": (48, HIDDEN), "d2t": (48,)}
        generator = torch.Generator().manual_seed(version)
        self.tensors = {name: torch.randn(shape, generator=generator) / 2 for name, shape in shapes.items()}
        if version == 3:
            self.tensors["d2t"] = torch.arange(48) // 4

    def names(self) -> Iterable[str]:
        return self.tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def read(self, name: str) -> Tensor:
        return self.tensors[name]

    def skip(self, names: Iterable[str]) -> None:
        pass


MADE: dict[str, EagleOptions] = {
    "eagle": EagleOptions(path="x"),
    "eagle2": Eagle2Options(path="x"),
    "eagle3": Eagle3Options(path="x"),
    "eagle3 static": Eagle3Options(path="x", tree="static"),
}


class TestEagle(DrafterContract):
    @pytest.fixture(params=MADE)
    def method(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def make_drafter(self, method: str) -> MakeDrafter:
        def make() -> EagleDrafter:
            drafter = EagleDrafter(MADE[method])
            model = Target().requires_grad_(False)
            target = TargetInfo(VOCAB_SIZE, CONTEXT_LENGTH, (0,), hidden_size=HIDDEN, layers=LAYERS, model=model)
            drafter.bind(target, Made(3 if "eagle3" in method else 1))
            drafter.reserve(LIVES * BLOCKS, BLOCK_TOKENS)
            return drafter

        return make

    @pytest.fixture
    def features(self, method: str) -> Features:
        count = 3 if "eagle3" in method else 1

        def rows(sequence: SequenceView, start: int, stop: int) -> FeatureRows:
            hidden = []
            for at in range(start, stop):
                seed = hash(tuple(sequence.tokens[: at + 1])) % 2**31
                hidden.append(torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed)))
            return FeatureRows(start, tuple(torch.stack(hidden).unbind(1)))

        return rows
