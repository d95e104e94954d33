"""Mode `table`: the draft shape that a profile's schedule names for the batch and context of the step.

What `adaptive` decides step by step from live confidences, the table decides once, from each depth's mean: good where
drafters give no confidence, and the measure that `adaptive` has to beat. It learns nothing while serving.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import lru_cache
from itertools import zip_longest

import numpy as np

from draftwing.core import NO_DRAFT, DraftShape, StepPlan
from draftwing.drafters.tree import full_size
from draftwing.errors import ConfigError
from draftwing.policy.artifact import ScheduleRow
from draftwing.policy.base import BoolArray, PlanInputs, UncutPolicy


def row_for(rows: Seq[ScheduleRow], batch: int, context: float) -> ScheduleRow:
    """The smallest bucket that holds this batch, and of its contexts the smallest that holds this one.

    Beyond the largest, the largest. context: cached tokens of a sequence, on average.
    """
    batches = sorted({row.batch for row in rows})
    bucket = next((b for b in batches if b >= batch), batches[-1])
    mine = sorted((row for row in rows if row.batch == bucket), key=lambda row: row.context)
    return next((row for row in mine if row.context >= context), mine[-1])


class TablePolicy(UncutPolicy):
    """Everybody drafts the shape of the row that holds the batch. ConfigError without rows. digest: the profile's."""

    mode = "table"

    def __init__(self, drafter: str, rows: Seq[ScheduleRow], digest: str = "") -> None:
        if not rows:
            raise ConfigError("policy.mode is 'table', but the profile has no schedule; run draftwing tune")
        self.drafter, self.digest = drafter, digest
        self.rows = tuple(rows)
        widest = zip_longest(*(row.branching for row in self.rows), fillvalue=1)
        branching = tuple(max(level) for level in widest)
        self.largest = DraftShape(branching, min(max(row.nodes for row in self.rows), full_size(branching)))

    def decide(self, inputs: PlanInputs) -> StepPlan:
        if not len(inputs):
            return StepPlan(self.drafter, (), "nobody decodes")
        row = row_for(self.rows, len(inputs), float(inputs.contexts.mean()))
        return StepPlan(self.drafter, cut_to_room(DraftShape(row.branching, row.nodes), inputs), _reason(row))


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
    most = len(cut.paths) or full_size(cut.branching)
    return DraftShape(cut.branching, min(cut.nodes, most), cut.paths) if cut.nodes > 0 else NO_DRAFT


def _reason(row: ScheduleRow) -> str:
    shape = "x".join(map(str, row.branching)) or "no draft"
    return f"table: up to {row.batch} sequences of {row.context} tokens {shape}, {row.margin:.2f}x plain expected"
