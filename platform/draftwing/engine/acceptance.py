"""What every verify of an engine drafted and accepted, for measuring."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from draftwing.core import StepPlan
from draftwing.drafters.base import Accepted, Controller, Drafter, FeatureRows
from draftwing.drafters.tree import depths
from draftwing.engine.drafting import Drafting, Drafts
from draftwing.engine.sequence import Sequence
from draftwing.engine.step import Engine

Verifies = list[tuple[int, int]]  # depth drafted, tokens accepted; verifies without a draft are left out


class _Watch(Drafting):
    def __init__(self, drafter: Drafter, vocab_size: int, seen: Verifies) -> None:
        super().__init__(drafter, vocab_size)
        self._seen = seen
        self._depths: list[int] = []

    def propose(self, sequences: Seq[Sequence], plan: StepPlan, controller: Controller) -> Drafts:
        drafts = super().propose(sequences, plan, controller)
        self._depths = [int(depths(draft.parents).max()) if len(draft) else 0 for draft in drafts.made]
        return drafts

    def committed(
        self, sequences: Seq[Sequence], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        self._seen += [(d, len(a.nodes)) for d, a in zip(self._depths, accepted, strict=True) if d]
        super().committed(sequences, accepted, features)


def watched(engine: Engine) -> Verifies:
    """A list that grows by the engine's verifies from now on; an earlier list stops."""
    seen: Verifies = []
    engine.drafting = _Watch(engine.drafting.drafter, engine.drafting.vocab_size, seen)
    return seen
