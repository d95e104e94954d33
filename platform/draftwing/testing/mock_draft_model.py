"""Method `draft_model` around a mock: the real drafter with its own pages, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from draftwing.core import FloatArray
from draftwing.drafters.base import ALONE, CheckpointReader, DrafterTraits, Mesh, TargetInfo
from draftwing.drafters.draft_model import DraftModelOptions
from draftwing.drafters.model_drafter import ModelDrafter
from draftwing.drafters.small_model import SmallModel
from draftwing.engine.batch import SequenceRows
from draftwing.testing.mock_target import MockBehaviour, MockTarget, Path


class MockSmallModel(SmallModel):
    """Thinks like the target, less its fine detail. Its pages complain as the mock target's do."""

    def __init__(self, target: MockTarget, blur: float) -> None:
        def blurred(path: Path) -> FloatArray:
            noise = np.random.default_rng([len(path), *path[-2:]]).normal(0, blur, target.vocab_size)
            return (target.logits_after(path) + noise).astype(np.float32)

        self._mock = MockBehaviour(target.vocab_size, distribution=blurred)
        self._pages: MockTarget | None = None
        self.context = 1 << 20
        self.kv_bytes_per_token = 1

    def allocate(self, blocks: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._pages = MockTarget(self._mock, slots=blocks * block_tokens)

    def forward(self, sequences: Sequence[SequenceRows]) -> Tensor:
        if self._pages is None:
            raise RuntimeError("the pages come first")
        return self._pages.forward(sequences)


class MockDraftModel(ModelDrafter):
    """The drafter of method `draft_model` with a mock in the place of its model. blur: deviation of its logits."""

    def __init__(self, target: MockTarget, blur: float = 1.0) -> None:
        super().__init__(DraftModelOptions(path="mock"))
        self._model = MockSmallModel(target, blur)
        self._traits = DrafterTraits(stop="incremental", trees=True, confidence=True)

    def bind(self, target: TargetInfo, checkpoint: CheckpointReader | None = None, mesh: Mesh = ALONE) -> None:
        self._target = target
