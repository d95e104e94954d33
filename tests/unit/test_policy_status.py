"""What is said of a policy: every mode, a tripped guard, and a map that follows costs and chances."""

from __future__ import annotations

from dataclasses import replace

from draftwing.core import DraftShape, StepRecord
from draftwing.decisions.status import BATCHES, status_of
from draftwing.drafters.base import DrafterTraits
from draftwing.policy.adaptive import AdaptivePolicy
from draftwing.policy.artifact import ScheduleRow
from draftwing.policy.cost import CostModel
from draftwing.policy.curves import BatchCell, CostCurves, VerifyCell
from draftwing.policy.guard import LEAST_STEPS, Speculated
from draftwing.policy.modes import FixedPolicy, OffPolicy
from draftwing.policy.profile import Profile
from draftwing.policy.table import TablePolicy

STEP = StepRecord(0, 3, 12, 0, 9, 4, 7, 0, 0, 50, 0, 0.0, 0.1, 0.2, 0.1, 0.0, "lookup", "fixed:k=3")


def adaptive(row_ms: float = 0.1, floor_ms: float = 10.0) -> AdaptivePolicy:
    """A verify of floor_ms up to 32 rows, and from there row_ms for each."""
    rows = (1, 8, 32, 128, 512)
    verify = [VerifyCell(batch=1, rows=n, context=0, verify_ms=floor_ms + row_ms * max(n - 32, 0)) for n in rows]
    curves = CostCurves(name="made", verify=tuple(verify), draft_step_ms=(BatchCell(batch=1, ms=0.1),))
    profile = Profile(CostModel.fit(curves), digest="abc")
    return AdaptivePolicy("lookup", DraftShape((1,) * 6, 6), DrafterTraits(), profile)


def test_modes_that_learn_nothing() -> None:
    assert status_of(OffPolicy()).mode == "off"
    fixed = status_of(FixedPolicy("lookup", DraftShape((1, 1, 1), 3)), STEP)
    assert (fixed.mode, fixed.setting, fixed.reason) == ("fixed", "9 draft nodes for 3 sequences", "fixed:k=3")
    plain = status_of(FixedPolicy("lookup", DraftShape((1,), 1)), replace(STEP, drafted=0))
    assert plain.setting == "plain"
    table = status_of(TablePolicy("lookup", [ScheduleRow(1, 512, (1, 1), 2, 2.0, 80.0, 1.4)]))
    assert table.schedule == [(1, 2, 1.4)]


def test_the_map_drafts_less_where_rows_cost_more() -> None:
    cheap, dear = status_of(adaptive(row_ms=0.0)), status_of(adaptive(row_ms=2.0))
    assert [row[0] for row in cheap.schedule] == list(BATCHES)
    assert all(k == 6 and gain > 1.5 for _, k, gain in cheap.schedule[:4])
    assert dear.schedule[0][1] == 6
    assert dear.schedule[-1][1] < 6
    assert all(gain >= 1 for _, _, gain in dear.schedule)


def test_the_ratio_is_the_guards() -> None:
    policy = adaptive()
    assert status_of(policy).ratio is None
    for i in range(LEAST_STEPS + 1):
        policy.guard.observe(Speculated(3.0 + i % 2, 2.0, 11.0, 3.0, 10.0))
    status = status_of(policy)
    assert status.ratio is not None
    assert status.half_width is not None
    assert 1.7 < status.ratio - status.half_width < 1.75 < status.ratio + status.half_width < 1.8
    assert status.cost_error is not None
    assert abs(status.cost_error - 0.1) < 1e-9
    assert (status.profile, status.tripped) == ("abc", False)


def test_a_tripped_guard_says_why() -> None:
    policy = adaptive()
    for _ in range(LEAST_STEPS + 1):
        policy.guard.observe(Speculated(1.0, 2.0, 20.0, 3.0, 10.0))
    status = status_of(policy, STEP)
    assert status.tripped
    assert "the cost model is wrong" in status.reason
