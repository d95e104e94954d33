"""What happened: a `StepRecord` per step, totals since the start, and each request's acceptance summary."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from draftwing.core import AcceptanceSummary, EngineCounters, IntArray, StepPlan, StepRecord

RECORDS_KEPT = 4096


@dataclass(slots=True)
class StepFacts:
    """One step's raw facts. marks: six clock readings, around schedule, draft, forward, sample, commit.

    parents [M] and depths [M] of the wanted rows; accepted: wanted rows of accepted draft nodes; drafted: nodes per
    decoding sequence.
    """

    marks: list[float]
    plan: StepPlan
    rows: int
    prefill_rows: int
    context: int
    waiting: int
    drafted: list[int]
    committed: int
    bad_drafts: int
    preempted: int
    parents: IntArray
    depths: IntArray
    accepted: IntArray


@dataclass(slots=True)
class Telemetry:
    """records: the latest steps. listener: called with each record, e.g. to export it."""

    counters: EngineCounters = field(default_factory=EngineCounters)
    records: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=RECORDS_KEPT))
    listener: Callable[[StepRecord], None] | None = None

    def record(self, facts: StepFacts) -> None:
        schedule, draft, forward, sample, commit = np.diff(facts.marks).tolist()
        record = StepRecord(
            step=self.counters.steps,
            sequences=len(facts.drafted),
            rows=facts.rows,
            prefill_rows=facts.prefill_rows,
            drafted=sum(facts.drafted),
            accepted=len(facts.accepted),
            committed=facts.committed,
            branched=_branched(facts.parents, facts.accepted),
            bad_drafts=facts.bad_drafts,
            context=facts.context,
            waiting=facts.waiting,
            schedule_s=schedule,
            draft_s=draft,
            forward_s=forward,
            sample_s=sample,
            commit_s=commit,
            drafter=facts.plan.drafter,
            reason=facts.plan.reason,
        )
        self.records.append(record)
        self._count(record, facts)
        if self.listener is not None:
            self.listener(record)

    def _count(self, record: StepRecord, facts: StepFacts) -> None:
        c = self.counters
        c.steps += 1
        c.generated_tokens += record.committed
        c.drafts += sum(1 for nodes in facts.drafted if nodes)
        c.draft_tokens += record.drafted
        c.accepted_tokens += record.accepted
        c.branched_tokens += record.branched
        c.bad_drafts += record.bad_drafts
        c.preemptions += facts.preempted
        per_depth = np.bincount(facts.depths[facts.accepted]).tolist()[1:]  # index 0: depth 1
        c.accepted_per_depth.extend([0] * (len(per_depth) - len(c.accepted_per_depth)))
        for depth, count in enumerate(per_depth):
            c.accepted_per_depth[depth] += count
        for name in ("schedule_s", "draft_s", "forward_s", "sample_s", "commit_s"):
            setattr(c, name, getattr(c, name) + getattr(record, name))


def observe(summary: AcceptanceSummary, *, drafted: int, accepted: int, depth: int) -> None:
    """Add one verify to a request's summary."""
    summary.verifies += 1
    if drafted:
        summary.drafted.append(drafted)
        summary.accepted.append(accepted)
        summary.max_depth = max(summary.max_depth, depth)


def _branched(parents: IntArray, accepted: IntArray) -> int:
    """Accepted nodes that were not their parent's first child."""
    nodes = np.flatnonzero(parents != np.arange(len(parents)))
    first_children = nodes[np.unique(parents[nodes], return_index=True)[1]]
    return int((~np.isin(accepted, first_children)).sum())
