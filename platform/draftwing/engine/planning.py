"""What a policy is told: of the sequences before a step, and of the step once it is over.

B decoding sequences.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from draftwing.core import IntArray, SamplingParams
from draftwing.engine.drafting import Drafts
from draftwing.engine.scheduler import Schedule, Scheduler
from draftwing.policy.base import PlanInputs, StepResult, acceptance_class


def plan_inputs(schedule: Schedule, scheduler: Scheduler, *, paused: bool = False) -> PlanInputs:
    """paused: nobody is to be drafted for, as if every request had asked so."""
    decoding = schedule.decoding

    def column(values: Seq[int]) -> IntArray:
        return np.array(values, dtype=np.int64)

    distorted = [_distorts(s.params) for s in decoding]
    return PlanInputs(
        speculate=np.array([s.params.speculate and not paused for s in decoding], dtype=np.bool_),
        tokens_left=column([s.tokens_left for s in decoding]),
        nodes_left=column(scheduler.draft_room(schedule)),
        contexts=column([s.kv_len for s in decoding]),
        behind=column([s.undrafted for s in decoding]),
        classes=column([acceptance_class(s.params.temperature, d) for s, d in zip(decoding, distorted, strict=True)]),
        distorted=np.array(distorted, dtype=np.bool_),
        requests=tuple(s.id for s in decoding),
        prefill_rows=sum(chunk for _, chunk in schedule.prefilling),
        prefill_context=sum(s.kv_len for s, _ in schedule.prefilling),
        waiting=len(scheduler.waiting),
    )


def step_result(
    drafts: Drafts,
    accepted: Seq[IntArray],
    committed: Seq[int],
    *,
    rows: int,
    draft_s: float,
    step_s: float,
    ended: tuple[str, ...],
) -> StepResult:
    """accepted: in the drafter's own numbers."""
    return StepResult(
        drafts=tuple(drafts.made),
        verified=tuple(drafts.verified),
        accepted=tuple(accepted),
        committed=np.array(committed, dtype=np.int64),
        levels=tuple(drafts.levels),
        rows=rows,
        draft_ms=1e3 * draft_s,
        step_ms=1e3 * step_s,
        ended=ended,
    )


def note_drafted(schedule: Schedule, drafts: Drafts, committed: Seq[int]) -> None:
    """Keep count of the tokens that each sequence's drafter has not seen to."""
    drafted = drafts.levels[0] if drafts.levels else np.zeros(len(schedule.decoding), dtype=np.bool_)
    for sequence, served, count in zip(schedule.decoding, drafted.tolist(), committed, strict=True):
        sequence.undrafted = 0 if served else sequence.undrafted + count
    for sequence, chunk in schedule.prefilling:
        sequence.undrafted += chunk


def _distorts(params: SamplingParams) -> bool:
    """What makes the target choose otherwise than a drafter expects."""
    return bool(
        params.logit_bias
        or params.repetition_penalty != 1
        or params.frequency_penalty
        or params.presence_penalty
        or params.min_tokens
    )
