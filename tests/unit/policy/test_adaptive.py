"""Mode adaptive on a virtual clock: it finds what pays, follows changes, and can be asked again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwing.core import DraftShape, DraftTree, Request, SamplingParams
from draftwing.decisions.log import LoggedPolicy, Origin, again, read_log, replayed
from draftwing.drafters.base import Drafter, DrafterTraits
from draftwing.drafters.ngram import NgramDrafter
from draftwing.drafters.tree import depths, shape_of
from draftwing.errors import ConfigError
from draftwing.policy.acceptance import AcceptanceModel
from draftwing.policy.adaptive import AdaptivePolicy
from draftwing.policy.base import BoolArray, PlanInputs, StepResult
from draftwing.policy.cost import CostModel
from draftwing.policy.curves import BatchCell, CostCurves, VerifyCell
from draftwing.policy.guard import LEAST_STEPS
from draftwing.policy.modes import OffPolicy, parse_mode
from draftwing.policy.nodes import grown_from, may_grow, side_by_side
from draftwing.policy.profile import Profile
from draftwing.policy.solver import Ahead
from draftwing.testing.mock_draft_model import MockDraftModel
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.policies import plan_inputs_of
from draftwing.testing.run_engine import make_engine, run_to_end
from draftwing_tuner.virtual import PricedDrafter, PricedRunner, Prices, VirtualClock
from tests.unit.policy.planted import RISING, World, best_fixed, costs_of

STEEP = costs_of({1: 10.0, 2: 20.0, 4: 40.0, 8: 80.0, 16: 160.0, 64: 640.0})
CLIFF = costs_of({1: 10.0, 2: 10.0, 4: 10.1, 5: 30.0, 8: 60.0, 16: 120.0, 64: 240.0})  # FLAT up to 4 rows
DEAR = costs_of({n: 10.0 + 1.5 * n for n in (1, 2, 4, 8, 16, 32, 64, 128)})
DEAR_BASE = costs_of({n: 10.0 + 0.1 * n for n in (1, 2, 4, 8, 16, 32, 64)})
FLAT = costs_of({1: 10.0, 2: 10.0, 4: 10.1, 8: 10.2, 16: 10.4, 64: 12.0, 256: 20.0})


def adaptive(
    costs: CostModel = RISING, profile: Profile | None = None, tpot_ms: float | None = None, **settings: Any
) -> tuple[AdaptivePolicy, World]:
    world = World(OffPolicy(), costs, **settings)
    policy = parse_mode("adaptive", "planted", world.traits, profile, tpot_ms)
    assert isinstance(policy, AdaptivePolicy)
    world.policy = policy
    return policy, world


def test_the_time_of_prompts_is_not_part_of_the_price_of_time() -> None:
    """They run whatever is drafted: a rate that counted their time would make drafting look cheap under load."""
    prices = []
    for prompt_rows in (0, 10):
        policy, _ = adaptive(profile=Profile(DEAR_BASE, frozen=True))
        none, two = np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.bool_)
        inputs = PlanInputs(two, none + 50, none + 50, none, none, none, ~two, ("a", "b"), prefill_rows=prompt_rows)
        step_ms = policy.costs.plain_ms(inputs)
        nothing = np.empty(0, dtype=np.int64)
        drafts = (DraftTree.empty(),) * 2
        result = StepResult(drafts, (nothing,) * 2, (nothing,) * 2, none + 1, (), 2 + prompt_rows, 0.0, step_ms)
        cold = policy.price(inputs)
        for _ in range(60):
            policy.observe(inputs, policy.decide(inputs), result)
        prices.append((cold, policy.price(inputs)))
    assert prices[0] == pytest.approx(prices[1], rel=1e-6)


def test_the_price_of_time_follows_the_text_at_once() -> None:
    """A rate learned on text that drafts well would make nothing look worth its time on other text."""
    policy, world = adaptive(profile=Profile(RISING, frozen=True), accuracy=0.95, batch=4)
    world.rate(100)
    none, four = np.zeros(4, dtype=np.int64), np.ones(4, dtype=np.bool_)
    policy.acceptance.hoped[1] = 0.3
    same, other = (
        PlanInputs(four, none + 50, none + 50, none, none, none + c, ~four, ("a", "b", "c", "d")) for c in (0, 1)
    )
    plain = 4 / policy.costs.plain_ms(other)
    assert plain <= policy.price(other) < 0.7 * policy.price(same)


WIDE = DraftShape((3, 2, 1), 15)
LEVELS = CostCurves(
    name="levels cost as much as a step, rows next to nothing",
    verify=tuple(VerifyCell(batch=1, rows=n, context=0, verify_ms=10.0 + n / 100) for n in (1, 2, 64, 512)),
    draft_step_ms=(BatchCell(batch=1, ms=5.0), BatchCell(batch=512, ms=5.0)),
)


ROWS = CostCurves(
    name="every row costs, the drafter's too",
    verify=tuple(VerifyCell(batch=1, rows=n, context=0, verify_ms=10.0 + 0.3 * n) for n in (1, 2, 64, 512)),
    draft_step_ms=(BatchCell(batch=1, ms=0.25), BatchCell(batch=512, ms=128.0)),
)


def chosen(costs: CostModel, batch: int, room: int = 15, largest: DraftShape = WIDE) -> list[list[int]]:
    """Of drafts that are a likely node, one that it leaves little, and a last one: which get children, from 1 on."""
    sure = np.array([0.95, 0.9, 0.01], dtype=np.float32)
    draft = DraftTree(np.array([1, 2, 3]), np.array([-1, -1, -1]), sure)
    traits = DrafterTraits(kind="token", stop="incremental", trees=True, confidence=True, max_depth=3)
    policy = AdaptivePolicy("it", largest, traits, Profile(costs, frozen=True))
    policy.acceptance.rank[:] = 0.0
    policy.acceptance.prior[:, :2] = 1.0
    policy.acceptance.hoped[:, :, 0] = 0.9
    none, all_of_them = np.zeros(batch, dtype=np.int64), np.ones(batch, dtype=np.bool_)
    names = tuple(map(str, range(batch)))
    inputs = PlanInputs(all_of_them, none + 50, none + room, none, none, none, ~all_of_them, names)
    controller = policy.controller(inputs, policy.decide(inputs))
    assert [nodes.tolist() for nodes in controller.deeper(0, [DraftTree.empty()] * batch)] == [[True]] * batch
    return [np.flatnonzero(nodes).tolist() for nodes in controller.deeper(1, [draft] * batch)]


@pytest.mark.parametrize("batch", [1, 8])
def test_only_nodes_that_are_worth_it_get_children(batch: int) -> None:
    assert chosen(CostModel.fit(ROWS), batch) == [[1]] * batch
    assert all(nodes[:2] == [1, 2] for nodes in chosen(CostModel.fit(LEVELS), batch))  # all for the price of one


def test_nodes_below_which_a_static_tree_has_none_get_no_children() -> None:
    paths = ((0,), (1,), (2,), (0, 0), (2, 0), (2, 1), (2, 0, 0), (2, 1, 0))
    sizes = [3, 5]
    drafts = [
        DraftTree(np.arange(3), np.array([-1, -1, -1])),
        DraftTree(np.arange(5), np.array([-1, -1, -1, 2, 2])),
    ]
    nodes = side_by_side(drafts)
    first, second = np.split(may_grow(nodes, paths), [sizes[0]])
    assert first.tolist() == [True, False, True]
    assert second.tolist() == [True, False, True, True, True]
    assert chosen(CostModel.fit(LEVELS), 2, largest=shape_of([(0,), (1,), (2,), (0, 0)])) == [[1], [1]]
    beyond = side_by_side([DraftTree(np.arange(6), np.array([-1, -1, -1, -1, 3, 1]))])  # of no node that is named
    assert may_grow(beyond, paths).tolist() == [True, False, True, False, False, False]


def test_a_level_costs_as_much_as_the_nodes_it_grew_from() -> None:
    tree = DraftTree(np.arange(6), np.array([-1, -1, 0, 0, 1, 3]))  # from the root, from two nodes, from one
    nodes = side_by_side([tree, DraftTree.empty(), DraftTree.chain([1, 2])])
    asked = [np.array(level) for level in ([True, True, True], [True, False, True], [True, False, True])]
    assert grown_from(nodes, asked).tolist() == [3.0, 3.0, 2.0]  # the chain's last level brought nothing
    costs = Profile(CostModel.fit(ROWS), frozen=True).live_costs(DrafterTraits(kind="token", stop="incremental"))
    assert costs.draft_ms(grown_from(nodes, asked), 0.0) == pytest.approx(0.25 * 8)


def test_a_draft_without_room_for_children_gets_none() -> None:
    assert chosen(FLAT, 2, room=3) == [[], []]
    assert chosen(FLAT, 2, room=4) != [[], []]


def looking(largest: DraftShape) -> Ahead:
    """From the roots of 8 sequences."""
    traits = DrafterTraits(kind="token", stop="incremental", trees=True, confidence=True, max_depth=8)
    policy = AdaptivePolicy("it", largest, traits, Profile(CostModel.fit(ROWS), frozen=True))
    policy.acceptance.hoped[:, :, 0] = 0.95
    none, eight = np.zeros(8, dtype=np.int64), np.ones(8, dtype=np.bool_)
    inputs = PlanInputs(eight, none + 50, none + 50, none, none, none, ~eight, tuple("abcdefgh"))
    return policy.ahead(inputs, np.arange(8))[0]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_nobody_looks_deeper_than_may_be_drafted(depth: int) -> None:
    assert looking(DraftShape((1,) * depth, depth)).levels == depth


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {"accuracy": 0.8},
        {"accuracy": 0.7, "batch": 8},
        {"accuracy": 0.6, "confidence": False, "block": True},
    ],
)
def test_reaches_the_best_fixed_setting_without_knowing_it(settings: dict[str, Any], measured: bool) -> None:
    _, world = adaptive(profile=Profile(RISING) if measured else None, **settings)
    world.rate(100)
    k, best = best_fixed(world, 200)
    assert k > 0
    assert world.rate(200) > 0.95 * best


@pytest.mark.parametrize("profile", [Profile(STEEP), None])
def test_leaves_it_where_nothing_pays(profile: Profile | None) -> None:
    policy, world = adaptive(STEEP, profile, accuracy=0.3, batch=4)
    world.rate(150)
    assert world.rate(300) > 0.97 * 4 / 40
    assert policy.guard.trips == 0


@pytest.mark.parametrize(
    ("accuracy", "batch", "confidence"),
    [
        ((0.9, 0.2), (4, 4), True),
        ((0.2, 0.9), (4, 4), False),
        ((0.7, 0.7), (1, 16), True),
        ((0.7, 0.7), (16, 2), False),
    ],
)
def test_follows_a_sudden_change_of_text_or_load_within_50_steps(
    accuracy: tuple[float, float], batch: tuple[int, int], confidence: bool
) -> None:
    _, world = adaptive(profile=Profile(RISING), accuracy=accuracy[0], batch=batch[0], confidence=confidence)
    world.rate(120)
    world.accuracy, world.batch = accuracy[1], batch[1]
    world.rate(50)
    _, best = best_fixed(world, 200)
    assert world.rate(200) > 0.95 * best


def test_acceptance_after_an_off_period_is_as_before() -> None:
    """Sixteen sequences fill the rows that are cheap, two leave room."""
    edge = costs_of({1: 10.0, 8: 12.0, 16: 14.0, 17: 60.0, 32: 90.0, 64: 150.0})
    policy, world = adaptive(edge, Profile(edge), accuracy=0.8, batch=2)
    world.rate(100)
    before = world.rate(200)
    world.batch = 16
    world.rate(100)
    verified = world.speculating
    world.rate(100)
    assert world.speculating - verified < 10
    world.batch = 2
    assert world.rate(200) > 0.95 * before
    assert not policy.guard.tripped


def test_the_guard_trips_on_a_wrong_cost_table_names_it_and_comes_back() -> None:
    policy, world = adaptive(CLIFF, Profile(FLAT, frozen=True), accuracy=0.5, batch=4)
    world.rate(LEAST_STEPS + 30)
    assert policy.guard.tripped
    assert "the cost model is wrong: steps took" in policy.guard.reason
    assert "acceptance model" not in policy.guard.reason
    plain = 4 / 10.1
    verified = world.speculating
    assert world.rate(500) > 0.9 * plain  # with this table a probe costs ten steps
    assert 2 <= world.speculating - verified <= 4
    world.costs = FLAT  # the table has become true
    world.rate(1000)
    assert policy.guard.reason == ""
    assert world.rate(100) > 1.3 * plain


def test_live_factors_mend_a_wrong_cost_table() -> None:
    _, world = adaptive(CLIFF, Profile(FLAT), accuracy=0.5, batch=4)
    world.rate(1000)
    assert world.rate(300) > 0.97 * 4 / 10.1


def test_a_latency_target_takes_more_than_pays() -> None:
    verified = []
    for tpot_ms in (None, 9.0):
        _, world = adaptive(DEAR, Profile(DEAR, frozen=True), tpot_ms, accuracy=0.8, batch=8)
        world.rate(60)
        before = world.verified_nodes
        world.rate(100)
        verified.append(world.verified_nodes - before)
    assert verified[1] > 1.3 * verified[0]


def test_distorted_requests_teach_nothing_that_others_share_and_are_forgotten() -> None:
    policy, world = adaptive(profile=Profile(RISING), accuracy=0.1, batch=3)
    world.distorted = True
    world.rate(30)
    assert set(policy.acceptance.requests) == {"0", "1", "2"}
    assert (policy.acceptance.weights.reshape(-1, *policy.acceptance.prior.shape) == policy.acceptance.prior).all()
    assert (policy.acceptance.hoped == AcceptanceModel().hoped).all()
    world.ended = ("1", "7")
    world.step()
    assert set(policy.acceptance.requests) == {"0", "2"}


@pytest.mark.parametrize("block", [False, True])
def test_a_logged_run_is_decided_again_step_for_step(block: bool, tmp_path: Path) -> None:
    """With arrivals, preemptions and pauses, from the file, by a policy that knows nothing but the file."""
    target = MockTarget(MockBehaviour(32, order=2, surprise=0.3), slots=4096)
    clock, prices = VirtualClock(), Prices(RISING)
    inner: Drafter = NgramDrafter() if block else MockDraftModel(target)
    inner.reserve(1024, 4)
    origin = Origin("adaptive", "it", inner.traits)
    engine = make_engine(
        PricedRunner(target, prices, clock),
        drafter=PricedDrafter(inner, prices, clock),
        policy=LoggedPolicy(origin.make(), origin, tmp_path / "log"),
        blocks=34,
        block_tokens=4,
        clock=clock,
    )
    draw = np.random.default_rng(3)
    for i in range(10):
        params = SamplingParams(max_tokens=int(draw.integers(10, 50)), temperature=0.5 * (i % 3), seed=i)
        engine.add(Request(str(i), draw.integers(0, 32, int(draw.integers(3, 30))).tolist(), params))
        engine.paused = "by hand" if i in (4, 6) else ""
        for _ in range(4):
            engine.step()
    engine.cancel("7")
    run_to_end(engine)
    assert engine.counters.preemptions > 0
    assert engine.counters.accepted_tokens > 5
    known, steps = read_log(tmp_path / "log")
    assert known == origin
    assert len(steps) == engine.counters.steps
    cuts = 0
    for policy, step in replayed(known, steps):
        plan, levels, cut = again(policy, step)
        assert plan == step.plan
        if not block:
            grew = [[bool(nodes.any()) for nodes in level] for level in levels]
            assert grew == [level.tolist() for level in step.result.levels]
            assert all(map(grown_as_chosen, step.result.drafts, zip(*levels, strict=True)))
        assert [nodes.tolist() for nodes in cut] == [nodes.tolist() for nodes in step.result.verified]
        cuts += sum(map(len, step.result.drafts)) > sum(map(len, cut))
    assert cuts > 3
    assert any(step.plan.reason == "adaptive: drafts" for step in steps)


def grown_as_chosen(draft: DraftTree, levels: tuple[BoolArray, ...]) -> bool:
    """Whether every node's parent was chosen at its depth."""
    at = depths(draft.parents).tolist()
    return all(levels[depth - 1][parent + 1] for depth, parent in zip(at, draft.parents.tolist(), strict=True))


def test_a_log_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("{}\n")
    with pytest.raises(ConfigError, match="no policy log of this version"):
        read_log(file)
    LoggedPolicy(OffPolicy(), Origin("off", "", DrafterTraits()), file)
    file.write_text(file.read_text() + '{"inputs": 3}\n')
    with pytest.raises(ConfigError, match=r"log:2 is no line"):
        read_log(file)
    with pytest.raises(ConfigError, match="can't be written"):
        LoggedPolicy(OffPolicy(), Origin("off", "", DrafterTraits()), tmp_path / "none" / "log")


def test_a_log_that_begins_leaves_those_before_it_whole(tmp_path: Path) -> None:
    """Whoever took their place: a new profile, another replica, a restart. The one before may still write."""
    file = tmp_path / "log"
    origins = [Origin("fixed:k=2", name, DrafterTraits()) for name in ("first", "second", "third")]
    step = plan_inputs_of(2)
    result = StepResult((), (), (), np.zeros(0, dtype=np.int64), (), 1, 0.0, 1.0)
    before: LoggedPolicy | None = None
    for origin in origins:
        policy = LoggedPolicy(origin.make(), origin, file)
        for each in (before, policy) if before else (policy,):
            each.observe(step, each.decide(step), result)
        before = policy
    kept = [read_log(tmp_path / name) for name in ("log.1", "log.2", "log")]
    assert [origin for origin, _ in kept] == origins
    assert [len(steps) for _, steps in kept] == [2, 2, 1]
