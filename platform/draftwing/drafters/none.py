"""The drafter that never drafts: plain decoding through the same step."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from draftwing.core import DraftTree, StepPlan
from draftwing.drafters.base import (
    Controller,
    DrafterMethod,
    DrafterOptions,
    DrafterTraits,
    MethodFacts,
    SequenceView,
    TokenDrafter,
)


class NoneDrafter(TokenDrafter):
    traits = DrafterTraits(max_depth=0)

    def propose(
        self,
        sequences: Seq[SequenceView],
        plan: StepPlan,
        controller: Controller,
        base: Seq[Seq[int]] | None = None,
    ) -> list[DraftTree]:
        return [DraftTree.empty() for _ in sequences]


METHOD = DrafterMethod(DrafterOptions, lambda options: NoneDrafter(), MethodFacts("plain decoding"))
