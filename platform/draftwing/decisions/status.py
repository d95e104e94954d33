"""What a policy does now and why, for `/dash`, the metrics and `draftwing policy`."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

import numpy as np

from draftwing.core import PolicyStatus, StepRecord
from draftwing.policy.adaptive import AdaptivePolicy
from draftwing.policy.base import PlanInputs, Policy
from draftwing.policy.modes import FixedPolicy
from draftwing.policy.table import TablePolicy

BATCHES = (1, 2, 4, 8, 16, 32, 64)  # of the map


def status_of(policy: Policy, latest: StepRecord | None = None) -> PolicyStatus:
    """latest: the engine's last step."""
    inner: object = getattr(policy, "inner", policy)
    setting = "no step yet"
    if latest is not None:
        setting = f"{latest.drafted} draft nodes for {latest.sequences} sequences" if latest.drafted else "plain"
    reason = "" if latest is None else latest.reason
    match inner:
        case AdaptivePolicy():
            return _adaptive(inner, setting, reason)
        case TablePolicy():
            schedule = [(row.batch, len(row.branching), row.margin) for row in inner.rows]
            return PolicyStatus("table", inner.drafter, setting, reason, schedule=schedule)
        case FixedPolicy():
            return PolicyStatus("fixed", inner.drafter, setting, reason)
    return PolicyStatus("off", "", setting, reason)


def _adaptive(policy: AdaptivePolicy, setting: str, reason: str) -> PolicyStatus:
    guard = policy.guard
    ratio, half = guard.ratio()
    known = bool(np.isfinite(half))
    expected_tokens = sum(step.expected_tokens for step in guard.steps)
    plain = sum(step.plain_tokens * step.expected_ms / max(step.ms, 1e-9) for step in guard.steps)
    errors = [abs(step.ms / step.expected_ms - 1) for step in guard.steps if step.expected_ms > 0]
    return PolicyStatus(
        "adaptive",
        policy.drafter,
        setting,
        guard.reason or reason,
        tripped=guard.tripped,
        ratio=ratio if known else None,
        half_width=half if known else None,
        predicted=expected_tokens / plain if known and plain > 0 else None,
        cost_error=float(np.median(errors)) if errors else None,
        profile=policy.profile.digest,
        schedule=[(batch, *_best(policy, batch)) for batch in BATCHES],
    )


def _best(policy: AdaptivePolicy, batch: int) -> tuple[int, float]:
    """The chain that pays best where everybody drafts one, from the mean chances, and its rate over plain's."""
    deepest = policy.largest.depth
    columns = np.zeros(batch, dtype=np.int64)
    allowed = np.ones(batch, dtype=np.bool_)
    inputs = PlanInputs(
        allowed, columns + deepest + 1, columns + deepest, columns, columns, columns, ~allowed, ("",) * batch
    )
    chances = policy.acceptance.undrafted(1, deepest, columns[:1], [""])[0].tolist()
    tokens = [1.0, *(1 + total for total in accumulate(accumulate(chances, mul)))]
    verify = policy.costs.step_ms(inputs, batch * deepest)[::batch]
    drafting = [0.0, *policy.costs.levels_ms(batch, deepest)[:, -1].tolist()]
    rates = [made / (ms + spent) for made, ms, spent in zip(tokens, verify.tolist(), drafting, strict=True)]
    k = max(range(deepest + 1), key=lambda depth: (rates[depth], -depth))
    return k, rates[k] / rates[0]
