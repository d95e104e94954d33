"""Mode `table`: the draft shape that a schedule names for the batch and context of the step.

A schedule is made by the same objective as `adaptive`, with each depth's mean chance in the place of confidences: of
all shapes the one with the most tokens per time. It learns nothing while serving.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import lru_cache

import numpy as np

from draftwing.core import NO_DRAFT, DraftShape, StepPlan
from draftwing.drafters.tree import full_size
from draftwing.policy.artifact import ScheduleRow
from draftwing.policy.base import BoolArray, PlanInputs, UncutPolicy


class TablePolicy(UncutPolicy):
    """rows: see `ScheduleRow`; a step uses the first whose bounds it is within, beyond all of them the last."""

    def __init__(self, drafter: str, rows: Seq[ScheduleRow]) -> None:
        self.drafter = drafter
        self._rows = [(row.batch, row.context, DraftShape(row.branching, row.nodes)) for row in rows]
        depth = max((shape.depth for _, _, shape in self._rows), default=0)
        nodes = max((shape.nodes for _, _, shape in self._rows), default=0)
        widths = [[s.branching[d] for _, _, s in self._rows if s.depth > d] for d in range(depth)]
        self.largest = DraftShape(tuple(map(max, widths)), nodes)

    def decide(self, inputs: PlanInputs) -> StepPlan:
        shape = self.shape(len(inputs), float(inputs.contexts.mean()) if len(inputs) else 0.0)
        name = "x".join(map(str, shape.branching)) or "no draft"
        return StepPlan(self.drafter, cut_to_room(shape, inputs), f"table: {name}")

    def shape(self, batch: int, context: float) -> DraftShape:
        """context: mean cached tokens of a sequence."""
        for most_batch, most_context, shape in self._rows:
            if batch <= most_batch and context <= most_context:
                return shape
        return self._rows[-1][2] if self._rows else NO_DRAFT


def cut_to_room(shape: DraftShape, inputs: PlanInputs, chosen: BoolArray | None = None) -> tuple[DraftShape, ...]:
    """The shape for every chosen sequence [B] that allows drafts, cut where one has less room.

    A verify commits one token more than it accepts, so the last token a request may emit needs no draft.
    """
    depth = np.clip(inputs.tokens_left - 1, 0, shape.depth) * inputs.speculate
    depth = depth if chosen is None else depth * chosen
    nodes = np.clip(inputs.nodes_left, 0, shape.nodes)
    return tuple(_cut(shape, d, n) for d, n in zip(depth.tolist(), nodes.tolist(), strict=True))


@lru_cache(maxsize=4096)
def _cut(shape: DraftShape, depth: int, nodes: int) -> DraftShape:
    cut = shape.cut(depth, nodes)
    return DraftShape(cut.branching, min(cut.nodes, full_size(cut.branching))) if cut.nodes > 0 else NO_DRAFT
