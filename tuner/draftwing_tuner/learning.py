"""From measured costs and a trace to what a profile holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftwing.core import DraftShape
from draftwing.policy.artifact import AcceptanceRow, Artifact, ScheduleRow
from draftwing.policy.cost import CostModel
from draftwing.policy.profile import Profile, learned_before
from draftwing.policy.table import row_for
from draftwing_tuner.grid import Bounds
from draftwing_tuner.rates import Bucket
from draftwing_tuner.search import Found


@dataclass(frozen=True, slots=True)
class Learned:
    costs: CostModel
    acceptance: tuple[AcceptanceRow, ...]
    found: tuple[Found, ...]

    @property
    def profile(self) -> Profile:
        """As a server reads it from what will be published."""
        return Profile(self.costs, learned_before(self.acceptance), self.schedule)

    @property
    def schedule(self) -> tuple[ScheduleRow, ...]:
        return tuple(schedule_row(one) for one in self.found)


def buckets_of(bounds: Bounds) -> list[Bucket]:
    """Every doubling of the batch, at a middle context, and at the longest where one was measured beyond it."""
    contexts = bounds.contexts[1:] or bounds.contexts
    return [Bucket(batch, context) for batch in bounds.batches for context in contexts]


def schedule_row(one: Found) -> ScheduleRow:
    return ScheduleRow(
        batch=one.bucket.batch,
        context=one.bucket.context,
        branching=one.shape.branching,
        nodes=one.shape.nodes,
        tokens=one.rate.tokens,
        rate=one.rate.per_ms * 1e3,
        margin=one.margin,
    )


def stored_shapes(artifact: Artifact | None) -> Callable[[Bucket], DraftShape | None]:
    """What the profile in use drafts in a bucket: a study's first guess."""

    def shape(bucket: Bucket) -> DraftShape | None:
        if artifact is None or not artifact.schedule:
            return None
        row = row_for(artifact.schedule, bucket.batch, bucket.context)
        return DraftShape(row.branching, row.nodes)

    return shape
