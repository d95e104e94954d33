"""What a policy does and believes, for people: its schedule by load, and how its models have done of late."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from draftwing.core import IntArray, PolicyStatus, StepRecord
from draftwing.decisions.log import LoggedPolicy
from draftwing.policy.acceptance import AcceptanceModel
from draftwing.policy.adaptive import AdaptivePolicy
from draftwing.policy.base import PlanInputs, Policy, UncutPolicy
from draftwing.policy.guard import Guard
from draftwing.policy.live_costs import LiveCosts
from draftwing.policy.table import TablePolicy

LOADS = (1, 2, 4, 8, 16, 32, 64)
TELLING = 20  # steps below which no ratio is told


def status_of(policy: Policy, last: StepRecord | None = None, paused: str = "") -> PolicyStatus:
    """last: the latest step. paused: as `Engine` has it."""
    setting = reason = ""
    if last is not None:
        many = f"{last.sequences} sequence{'s' * (last.sequences != 1)}"
        nodes = f"{last.drafted or 'no'} draft node{'s' * (last.drafted != 1)}"
        setting = f"{nodes} verified for {many}"
        reason = last.reason
    inner = policy.inner if isinstance(policy, LoggedPolicy) else policy
    if isinstance(inner, AdaptivePolicy):
        return PolicyStatus(
            "adaptive",
            inner.drafter,
            setting,
            paused or inner.guard.reason or reason,
            tripped=inner.guard.tripped,
            paused=bool(paused),
            profile=inner.profile.digest,
            schedule=schedule(inner.costs, inner.acceptance, inner.largest.depth, inner.context),
            **lately(inner.guard),
        )
    mode = inner.mode if isinstance(inner, UncutPolicy) else "own"
    rows, digest = [], ""
    if isinstance(inner, TablePolicy):
        rows, digest = [(r.batch, len(r.branching), r.margin) for r in inner.rows], inner.digest
    return PolicyStatus(
        mode, inner.drafter, setting, paused or reason, paused=bool(paused), profile=digest, schedule=rows
    )


def schedule(
    costs: LiveCosts, acceptance: AcceptanceModel, depth: int, context: int, loads: Seq[int] = LOADS
) -> list[tuple[int, int, float]]:
    """Sequences, the draft length that the mean chances make best for greedy requests, and its rate over plain's.

    depth: most. context: cached tokens of each sequence. Live confidences do better than this.
    """
    rows = []
    hoped = np.cumsum(np.cumprod(acceptance.undrafted(1, depth, np.zeros(1, dtype=np.int64), ["none"])[0]))
    for batch in loads:
        step_ms = costs.step_ms(_alike(batch, context), batch * depth)[::batch]
        taken = step_ms + np.concatenate([[0.0], costs.levels_ms(batch, depth)[:, -1]])
        ratios = (1 + np.concatenate([[0.0], hoped])) * step_ms[0] / taken
        best = int(ratios.argmax())
        rows.append((batch, best, float(ratios[best])))
    return rows


def lately(guard: Guard) -> dict[str, float]:
    """ratio, half_width, predicted and cost_error over the guard's window, as `PolicyStatus` has them."""
    steps = guard.window
    if len(steps) < TELLING:
        return {}
    ratio, half_width = guard.ratio()
    ms, plain, tokens, expected = np.array(
        [(s.ms, s.plain_tokens, s.expected_tokens, s.expected_ms) for s in steps], dtype=np.float64
    ).T
    predicted = tokens.sum() / expected.sum() * ms.sum() / plain.sum()
    error = np.median(np.abs(ms / np.maximum(expected, 1e-9) - 1))
    return {"ratio": ratio, "half_width": half_width, "predicted": float(predicted), "cost_error": float(error)}


def _alike(batch: int, context: int) -> PlanInputs:
    many: IntArray = np.full(batch, 1 << 20)
    none, no = np.zeros(batch, dtype=np.int64), np.zeros(batch, dtype=np.bool_)
    return PlanInputs(~no, many, many, none + context, none, none, no, ("none",) * batch)
