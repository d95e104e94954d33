"""A drafter's drafts spoiled on the way, one fault at a time: none may change an output or stop an engine (rule R3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from draftwing.core import DraftTree, StepPlan
from draftwing.drafters.base import (
    ALONE,
    Accepted,
    CheckpointReader,
    Controller,
    Drafter,
    DrafterTraits,
    FeatureRows,
    Mesh,
    SequenceView,
    TargetInfo,
)

Spoil = Callable[[list[DraftTree]], Any]


def _raise(_: list[DraftTree]) -> Any:
    raise ZeroDivisionError("a drafter's bug")


def _late(drafts: list[DraftTree]) -> Any:
    time.sleep(0.002)
    return drafts


def _each(change: Callable[[DraftTree], Any]) -> Spoil:
    return lambda drafts: [change(draft) for draft in drafts]


def _with(draft: DraftTree, token: int) -> DraftTree:
    return DraftTree(np.append(draft.tokens, token), np.append(draft.parents, len(draft) - 1))


def _not_a_number(draft: DraftTree) -> DraftTree:
    return DraftTree(draft.tokens, draft.parents, np.full(len(draft), np.nan, dtype=np.float32))


FAULTS: dict[str, Spoil] = {
    "raises": _raise,
    "slow": _late,
    "nothing": lambda drafts: None,
    "too few": lambda drafts: drafts[1:],
    "too many": lambda drafts: [*drafts, DraftTree.chain([1])],
    "no tree": _each(lambda draft: draft.tokens.tolist()),
    "NaN": _each(_not_a_number),
    "wrong shape": _each(lambda draft: DraftTree(draft.tokens[:, None], draft.parents)),
    "wrong type": _each(lambda draft: DraftTree((draft.tokens + 0.5).astype(np.int64).astype(object), draft.parents)),
    "id too large": _each(lambda draft: _with(draft, 2**40)),
    "id negative": _each(lambda draft: _with(draft, -1)),
    "too deep": _each(lambda draft: DraftTree.chain([1] * 99)),
    "a parent that comes later": _each(lambda draft: DraftTree(draft.tokens, np.arange(1, len(draft) + 1))),
    "wrong tokens": _each(lambda draft: DraftTree((draft.tokens + 1) % 7, draft.parents)),
}


@dataclass(slots=True)
class FaultyDrafter:
    """All as the inner drafter does, which is bound already, but for what `propose` returns. calls: of `propose`."""

    inner: Drafter
    spoil: Spoil
    calls: int = 0

    @property
    def traits(self) -> DrafterTraits:
        return self.inner.traits

    def bind(self, target: TargetInfo, checkpoint: CheckpointReader | None = None, mesh: Mesh = ALONE) -> None:
        pass

    def reserve(self, blocks: int, block_tokens: int) -> None:
        self.inner.reserve(blocks, block_tokens)

    def prefill(self, sequences: Seq[SequenceView], features: Seq[FeatureRows] | None = None) -> None:
        self.inner.prefill(sequences, features)

    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        self.calls += 1
        drafts = self.inner.propose(sequences, plan, controller, base)
        return cast("list[DraftTree]", self.spoil(drafts))

    def commit(
        self, sequences: Seq[SequenceView], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        self.inner.commit(sequences, accepted, features)

    def release(self, sequence: SequenceView) -> None:
        self.inner.release(sequence)
