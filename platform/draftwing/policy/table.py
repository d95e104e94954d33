"""The learned schedule: a draft shape for each batch size and context, from a profile.

What `adaptive` decides step by step from live confidences, the table decides once, from averages: good where drafters
give no confidence, and the measure that `adaptive` has to beat.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import zip_longest

from draftwing.core import DraftShape, StepPlan
from draftwing.drafters.tree import full_size
from draftwing.errors import ConfigError
from draftwing.policy.artifact import ScheduleRow
from draftwing.policy.base import PlanInputs, UncutPolicy
from draftwing.policy.modes import FixedPolicy


def row_for(rows: Seq[ScheduleRow], batch: int, context: float) -> ScheduleRow:
    """The smallest bucket that holds this batch, and of its contexts the smallest that holds this one.

    Beyond the largest, the largest. context: cached tokens of a sequence, on average.
    """
    batches = sorted({row.batch for row in rows})
    bucket = next((b for b in batches if b >= batch), batches[-1])
    mine = sorted((row for row in rows if row.batch == bucket), key=lambda row: row.context)
    return next((row for row in mine if row.context >= context), mine[-1])


class TablePolicy(UncutPolicy):
    """Everybody drafts the shape of the row that holds the batch. ConfigError without rows."""

    def __init__(self, drafter: str, rows: Seq[ScheduleRow]) -> None:
        if not rows:
            raise ConfigError("policy.mode is 'table', but the profile has no schedule; run draftwing tune")
        self.drafter = drafter
        self.rows = tuple(rows)
        widest = zip_longest(*(row.branching for row in self.rows), fillvalue=1)
        branching = tuple(max(level) for level in widest)
        self.largest = DraftShape(branching, min(max(row.nodes for row in self.rows), full_size(branching)))
        self._fixed = {row: FixedPolicy(drafter, DraftShape(row.branching, row.nodes), _reason(row)) for row in rows}

    def decide(self, inputs: PlanInputs) -> StepPlan:
        if not len(inputs):
            return StepPlan(self.drafter, (), "nobody decodes")
        return self._fixed[row_for(self.rows, len(inputs), float(inputs.contexts.mean()))].decide(inputs)


def _reason(row: ScheduleRow) -> str:
    shape = "x".join(map(str, row.branching)) or "no draft"
    return f"table: up to {row.batch} sequences of {row.context} tokens {shape}, {row.margin:.2f}x plain expected"
