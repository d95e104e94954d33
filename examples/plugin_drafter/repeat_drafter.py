"""Method `repeat`: propose the last few tokens over again."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from pydantic import Field

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


class RepeatOptions(DrafterOptions):
    """period: how many tokens are repeated."""

    period: int = Field(default=2, ge=1, le=64)


class RepeatDrafter(TokenDrafter):
    traits = DrafterTraits()

    def __init__(self, options: RepeatOptions | None = None) -> None:
        self._period = (options or RepeatOptions()).period

    def propose(
        self,
        sequences: Seq[SequenceView],
        plan: StepPlan,
        controller: Controller,
        base: Seq[Seq[int]] | None = None,
    ) -> list[DraftTree]:
        drafts = []
        for index, (sequence, shape) in enumerate(zip(sequences, plan.shapes, strict=True)):
            last = [*sequence.tokens[-self._period :], *(base[index] if base is not None else ())][-self._period :]
            count = min(shape.depth, shape.nodes)
            drafts.append(DraftTree.chain((last * count)[:count]))
        return drafts


METHOD = DrafterMethod(RepeatOptions, RepeatDrafter, MethodFacts("repeats the last tokens"))
