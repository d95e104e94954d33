"""From measured costs and a trace to what a profile holds, and to what it should bring by replay."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import exp, log

from draftwing.core import NO_DRAFT, DraftShape
from draftwing.policy.artifact import AcceptanceRow, Artifact, ScheduleRow
from draftwing.policy.cost import CostModel
from draftwing.policy.profile import Profile, learned_before
from draftwing.policy.table import row_for
from draftwing_tuner.grid import Bounds
from draftwing_tuner.history import shape_text
from draftwing_tuner.search import CHAINS, DEFAULT, Bucket, Found, Replay, best_fixed


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


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to draft, by replay: its rate over plain's in each bucket, and their geometric mean."""

    name: str
    ratios: tuple[float, ...]

    @property
    def overall(self) -> float:
        return exp(sum(map(log, self.ratios)) / len(self.ratios))


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


def settings(replay: Replay, found: Seq[Found], most_depth: int) -> list[Setting]:
    """The table beside plain decoding, every chain, the best single shape, and the default that nobody tuned."""

    def of(name: str, shape_in: Callable[[Found], DraftShape]) -> Setting:
        ratios = (replay.rate(one.bucket, shape_in(one)).per_ms / one.plain.per_ms for one in found)
        return Setting(name, tuple(ratios))

    best, _ = best_fixed(replay, found, most_depth)
    chains = [shape for shape in CHAINS if shape.depth <= most_depth]
    return [
        of("plain decoding", lambda _: NO_DRAFT),
        *(of(f"fixed k={shape.depth}", lambda _, shape=shape: shape) for shape in chains),  # type: ignore[misc]
        of(f"best single shape {shape_text(best)}", lambda _: best),
        of("untuned default k=4", lambda _: DEFAULT),
        of("table", lambda one: one.shape),
    ]
