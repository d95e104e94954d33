"""The rules beside which `adaptive` is shown do what their descriptions say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.replay_day import missed, together
from benchmarks.replay_rules import DRAFTER, EmaRule, GoodputRule, TrimRule, line
from draftwing.core import DraftTree, StepPlan
from draftwing.policy.base import PlanInputs, StepResult
from draftwing.policy.closed_form import expected_tokens
from draftwing.policy.cost import CostModel
from draftwing.policy.curves import BatchCell, CostCurves, VerifyCell
from draftwing.testing.policies import plan_inputs_of


def costs(*cells: tuple[int, float], draft: float = 1.0) -> CostModel:
    verify = tuple(VerifyCell(batch=1, rows=rows, context=0, verify_ms=ms) for rows, ms in cells)
    return CostModel.fit(CostCurves(name="made", verify=verify, draft_step_ms=(BatchCell(batch=1, ms=draft),)))


LINEAR = costs((1, 10.1), (2, 10.2), (8, 10.8), (64, 16.4), (512, 61.2))
INPUTS = plan_inputs_of(1)


def told(policy: Any, drafted: int, accepted: int, inputs: PlanInputs = INPUTS) -> None:
    """One step with a chain for each sequence."""
    count = len(inputs)
    draft = DraftTree.chain(list(range(drafted)))
    result = StepResult(
        drafts=(draft,) * count,
        verified=(np.arange(drafted),) * count,
        accepted=(np.arange(accepted),) * count,
        committed=np.full(count, accepted + 1),
        levels=tuple(np.ones(count, dtype=np.bool_) for _ in range(drafted)),
        rows=count * (drafted + 1),
        draft_ms=1.0,
        step_ms=10.0,
    )
    policy.observe(inputs, StepPlan(DRAFTER, policy.decide(inputs).shapes), result)


def depth(policy: Any, inputs: PlanInputs = INPUTS) -> int:
    plan: StepPlan = policy.decide(inputs)
    return max(shape.depth for shape in plan.shapes)


def test_ema_climbs_and_falls_a_tier_every_five_batches() -> None:
    rule = EmaRule()
    seen = []
    for _ in range(30):
        told(rule, depth(rule), depth(rule))
        seen.append(depth(rule))
    assert [i + 1 for i in range(1, 30) if seen[i] != seen[i - 1]] == [10, 20]
    assert (seen[0], seen[-1]) == (3, 7)
    for _ in range(60):
        told(rule, depth(rule), 0)
    assert depth(rule) == 1


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 0.95])
def test_goodput_drafts_the_length_of_the_closed_form(alpha: float) -> None:
    rule = GoodputRule(LINEAR, prior=1e9)
    rule._all = np.array([alpha, 1.0]) * 1e9
    fixed, per_row = line(LINEAR)
    assert (fixed, per_row) == pytest.approx((10.0, 0.1), rel=1e-3)
    best = max(range(9), key=lambda k: expected_tokens(alpha, k) / (10 + 0.1 * (k + 1) + k))
    assert depth(rule) == best


def test_goodput_tells_requests_apart() -> None:
    rule = GoodputRule(LINEAR)
    one, other = plan_inputs_of(1, requests=("good",)), plan_inputs_of(1, requests=("bad",))
    for _ in range(20):
        told(rule, 8, 8, one)
        told(rule, 8, 0, other)
    assert depth(rule, one) > depth(rule, other)


def test_goodput_probes_where_nothing_pays() -> None:
    rule = GoodputRule(costs((1, 1.0), (2, 9.0), (8, 40.0)))
    drafted = []
    for _ in range(100):
        length = depth(rule)
        told(rule, length, 0)
        drafted.append(length)
    assert 2 <= sum(length > 0 for length in drafted[20:]) <= 20


def test_trim_keeps_the_best_ratio_of_all_prefixes() -> None:
    stair = costs((1, 10.0), (2, 14.0), (3, 15.0), (4, 30.0), (16, 60.0))
    rule = TrimRule(stair, length=3)
    inputs = plan_inputs_of(2)
    drafts = [
        DraftTree(np.arange(3), np.arange(-1, 2), np.array(given, dtype=np.float32))
        for given in ([0.9, 0.8, 0.1], [0.3, 0.9, 0.9])
    ]
    kept = rule.cut(inputs, rule.decide(inputs), drafts)
    assert kept is not None
    odds = [np.log(np.array(d.confidences) / (1 - np.array(d.confidences))) for d in drafts]
    chance = [1 / (1 + np.exp(-0.5 * x)) for x in odds]  # the model before it has seen anything
    survival = [np.cumprod(c) for c in chance]
    spent = 3 * 1.0
    best = max(
        ((2 + survival[0][:a].sum() + survival[1][:b].sum()) / (float(stair.verify_ms(2 + a + b)) + spent), a, b)
        for a in range(4)
        for b in range(4)
    )
    assert [len(nodes) for nodes in kept] == [best[1], best[2]]


def test_trim_learns_what_to_verify_and_drafts_all_the_same() -> None:
    rule = TrimRule(costs((1, 10.0), (2, 14.0), (3, 18.0), (16, 70.0)), length=2)
    drafts = [DraftTree.chain([0, 1])]

    def kept() -> int:
        nodes = rule.cut(INPUTS, rule.decide(INPUTS), drafts)
        return 2 if nodes is None else len(nodes[0])

    before = kept()
    for _ in range(40):
        told(rule, 2, 0)
    assert (before, kept(), depth(rule)) == (1, 0, 2)


RATIOS = {"adaptive": 1.2, "best_fixed": 1.0, "table": 1.0, "ema": 1.0, "goodput": 1.0, "trim": 1.0}


@pytest.mark.parametrize(
    ("where", "change", "count"),
    [
        ("overall", {}, 0),
        ("phase", {"best_fixed": 1.2 / 0.979}, 1),
        ("phase", {"best_fixed": 1.2 / 0.981}, 0),
        ("overall", {"best_fixed": 1.201}, 1),
        ("overall", {"goodput": 1.207}, 1),
        ("overall", {"goodput": 1.205}, 0),
    ],
)
def test_bars_of_one_curve(where: str, change: dict[str, float], count: int) -> None:
    phase = RATIOS | {"name": "noon"} | (change if where == "phase" else {})
    assert len(missed([phase], RATIOS | (change if where == "overall" else {}))) == count


@pytest.mark.parametrize(
    ("change", "count"), [({}, 0), ({"best_fixed": 1.1}, 1), ({"trim": 1.2}, 1), ({"best_fixed": 1.09}, 0)]
)
def test_bars_over_all_curves(change: dict[str, float], count: int) -> None:
    means, found = together([{"overall": RATIOS | change}] * 2)
    assert means["adaptive"] == pytest.approx(1.2)
    assert len(found) == count
