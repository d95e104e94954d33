"""The simulator is the engine without a model: the same plans at the same times, step for step."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from draftwing.core import DraftShape, DraftTree, FloatArray, Request, StepPlan
from draftwing.drafters.base import Drafter, DrafterTraits, NullController
from draftwing.drafters.ngram import NgramDrafter
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.scheduler import Limits
from draftwing.engine.step import Engine
from draftwing.policy.adaptive import AdaptivePolicy
from draftwing.policy.base import Policy
from draftwing.policy.cost import CostModel
from draftwing.policy.curves import BatchCell, CostCurves, TokensCell, VerifyCell
from draftwing.policy.modes import FixedPolicy, OffPolicy
from draftwing.policy.profile import Profile
from draftwing.testing.drafters import View
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.run_engine import assert_idle, make_engine
from draftwing_tuner.replay import ReplayDrafter, answer_of, largest_shape, within
from draftwing_tuner.simulate import Arrivals, Closed, Scripted, Simulation, asks, drive
from draftwing_tuner.trace import Proposals, Trace
from draftwing_tuner.virtual import PricedDrafter, PricedRunner, Prices, VirtualClock
from tests.unit.tuner.traces import VOCABULARY, Logged, RestlessPolicy, made_up_trace

COSTS = CostModel.fit(
    CostCurves(
        name="jagged",
        verify=tuple(
            VerifyCell(batch=1, rows=rows, context=context, verify_ms=ms + context / 700)
            for context in (0, 100)
            for rows, ms in ((1, 13.9), (2, 21.3), (3, 29.9), (4, 21.7), (8, 30.6), (32, 47.0))
        ),
        draft_step_ms=(BatchCell(batch=1, ms=1.0), BatchCell(batch=16, ms=2.9)),
        overhead_ms=(BatchCell(batch=1, ms=0.1), BatchCell(batch=8, ms=0.7)),
        catch_up_ms=(TokensCell(tokens=1, ms=0.3), TokensCell(tokens=64, ms=1.7)),
        transport_ms=0.05,
    )
)
LIMITS = Limits(sequences=4, queue=64, batch_tokens=24, prefill_chunk=7)


def simulation(trace: Trace, policy: Policy, *, blocks: int = 400, drafter: Drafter | None = None) -> Simulation:
    drafter = drafter or ReplayDrafter(trace, "made")
    pool = BlockPool(blocks, 4, prefix=False)
    return Simulation(trace, costs=COSTS, policy=policy, drafter=drafter, pool=pool, limits=LIMITS)


def live(trace: Trace, policy: Policy, *, blocks: int, drafter: Drafter) -> tuple[Engine, VirtualClock]:
    """An engine whose mock target emits the trace's text, on a virtual clock."""
    texts = {request.prompt: request.output for request in trace.requests}

    def next_token(path: tuple[int, ...]) -> FloatArray:
        logits = np.zeros(VOCABULARY, dtype=np.float32)
        found = [text for prompt, text in texts.items() if prompt is not None and path[: len(prompt)] == prompt]
        (output,) = found
        at = len(path) - next(len(prompt) for prompt, text in texts.items() if prompt and text is output)
        logits[output[at] if at < len(output) else 0] = 1.0
        return logits

    clock = VirtualClock()
    prices = Prices(COSTS)
    target = MockTarget(MockBehaviour(VOCABULARY, distribution=next_token), slots=blocks * 4)
    engine = make_engine(
        PricedRunner(target, prices, clock),
        drafter=PricedDrafter(drafter, prices, clock),
        policy=policy,
        blocks=blocks,
        sequences=LIMITS.sequences,
        batch_tokens=LIMITS.batch_tokens,
        prefill_chunk=LIMITS.prefill_chunk,
        prefix=False,
        clock=clock,
    )
    return engine, clock


def script(trace: Trace, seed: int) -> list[tuple[float, Request]]:
    draw = random.Random(seed)
    return [(draw.random() * 0.6, asks(answer, i)) for i, answer in enumerate(trace.requests * 2)]


def adaptive() -> Policy:
    traits = DrafterTraits(stop="incremental", trees=True, confidence=True)
    profile = Profile(costs=COSTS, frozen=True)
    return AdaptivePolicy("made", DraftShape((3, 2, 1, 1), 17), traits, profile)


@pytest.mark.parametrize("make", [RestlessPolicy, adaptive])
@pytest.mark.parametrize("blocks", [16, 400])
@pytest.mark.parametrize("seed", range(4))
def test_the_engine_on_a_virtual_clock_makes_the_simulators_plans(
    seed: int, blocks: int, make: Callable[[], Policy]
) -> None:
    trace = made_up_trace(seed)
    one, other = Logged(make()), Logged(make())
    simulated = simulation(trace, one, blocks=blocks)
    drive(simulated, Scripted(script(trace, seed)), simulated.clock)
    engine, clock = live(trace, other, blocks=blocks, drafter=ReplayDrafter(trace, "made"))
    drive(engine, Scripted(script(trace, seed)), clock)
    for step, (mine, its) in enumerate(zip(one.steps, other.steps, strict=True)):
        assert mine == its, f"step {step}"
    assert simulated.clock() == clock()
    assert engine.counters.preemptions == simulated.counters.preemptions
    assert (engine.counters.preemptions > 0) == (blocks == 16)
    assert engine.counters.draft_tokens > 0
    assert_idle(engine)


def test_a_log_makes_the_same_decisions_again() -> None:
    trace = made_up_trace(1)
    policy = Logged(adaptive())
    engine, clock = live(trace, policy, blocks=16, drafter=ReplayDrafter(trace, "made"))
    drive(engine, Scripted(script(trace, 1)), clock)
    fresh = adaptive()
    for inputs, plan, result in policy.log:
        assert fresh.decide(inputs) == plan
        cut = fresh.cut(inputs, plan, result.drafts)
        kept = [np.arange(len(draft)) for draft in result.drafts] if cut is None else cut
        assert [nodes.tolist() for nodes in kept] == [nodes.tolist() for nodes in result.verified]
        fresh.observe(inputs, plan, result)
    assert engine.counters.preemptions > 0


def test_a_real_drafter_replays_too() -> None:
    trace = made_up_trace(1)
    logs = []
    policies = [FixedPolicy("ngram", DraftShape((2, 1, 1), 6)) for _ in range(2)]
    drafters = [NgramDrafter(), NgramDrafter()]
    simulated = simulation(trace, policies[0], drafter=drafters[0])
    logs.append(drive(simulated, Scripted(script(trace, 1)), simulated.clock))
    engine, clock = live(trace, policies[1], blocks=400, drafter=drafters[1])
    logs.append(drive(engine, Scripted(script(trace, 1)), clock))
    assert logs[0] == logs[1]
    assert simulated.clock() == clock()
    assert engine.counters.draft_tokens > 0


def served(trace: Trace, policy: Policy, arrivals: Arrivals) -> tuple[int, float, int]:
    """Steps, seconds, tokens."""
    world = simulation(trace, policy)
    tokens = 0
    step = world.step

    def counted() -> object:
        nonlocal tokens
        done = step()
        tokens += done.committed
        return done

    world.step = counted  # type: ignore[method-assign, assignment]
    return drive(world, arrivals, world.clock), world.clock(), tokens


@pytest.mark.parametrize("concurrency", [1, 3])
def test_every_answer_is_served_whole(concurrency: int) -> None:
    trace = made_up_trace(5)
    asked = [asks(answer, 0, most=20) for answer in trace.requests]
    wanted = sum(request.params.max_tokens for request in asked)
    runs = [
        served(trace, policy, Closed(asked, concurrency))
        for policy in (OffPolicy(), FixedPolicy("made", DraftShape((1, 1, 1), 3)), RestlessPolicy())
    ]
    assert [tokens for _, _, tokens in runs] == [wanted] * 3
    assert runs[1][0] < runs[0][0]  # drafts that are accepted save steps


def test_a_plain_step_takes_what_the_cost_model_says() -> None:
    trace = made_up_trace(3, answers=1)
    answer = trace.requests[0]
    world = simulation(trace, OffPolicy())
    world.add(asks(answer, 0))
    chunks = [min(7, answer.prompt_len - at) for at in range(0, answer.prompt_len, 7)]
    rows = [*chunks, *([1] * (len(answer.output) - 1))]
    cached = [*np.cumsum([0, *chunks])[:-1].tolist(), *range(answer.prompt_len, answer.prompt_len + len(answer.output))]
    expected = 0.0
    for n, context in zip(rows, cached, strict=False):
        world.step()
        expected += float(COSTS.step_ms(1, n, context)) / 1e3
        assert world.clock() == pytest.approx(expected)
    assert not world.busy


def test_levels_are_paid_by_the_nodes_they_grow_from() -> None:
    trace = made_up_trace(0)
    world = simulation(trace, OffPolicy())
    drafter = PricedDrafter(ReplayDrafter(trace, "made"), Prices(COSTS), world.clock)
    answer = next(
        (answer, at)
        for answer, proposals in zip(trace.requests, trace.proposals["made"], strict=True)
        for at in range(len(answer.output))
        if len(within(proposals.at(at), (2, 1))) == 4
    )
    request, at = asks(answer[0], 0), answer[1]
    view = View(request.id, [*request.prompt_ids, *answer[0].output[:at]], len(request.prompt_ids))
    (tree,) = drafter.propose([view], StepPlan("made", (DraftShape((2, 1), 4),)), NullController())
    assert len(tree) == 4
    expected = float(COSTS.draft(1)) + COSTS.transport_ms + float(COSTS.draft(2))
    assert 1e3 * world.clock() == pytest.approx(expected)


def test_stored_trees_give_every_smaller_one() -> None:
    tree = DraftTree(np.array([1, 2, 3, 4, 5, 6]), np.array([-1, -1, 0, 0, 1, 2]))
    assert within(tree, (2, 2, 1)).tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert within(tree, (1, 1, 1)).tokens.tolist() == [1, 3, 6]
    assert within(tree, (1, 2)).tokens.tolist() == [1, 3, 4]
    assert within(tree, (2, 1)).parents.tolist() == [-1, -1, 0, 1]


def test_the_largest_shape_covers_every_stored_tree() -> None:
    trace = made_up_trace(2)
    shape = largest_shape(trace, "made")
    assert shape.branching == (3, 3, 3, 3, 3)
    for proposals in trace.proposals["made"]:
        for at in range(len(proposals.starts) - 1):
            assert within(proposals.at(at), shape.branching) is not None
            assert len(within(proposals.at(at), shape.branching)) == len(proposals.at(at)) <= shape.nodes


def test_the_largest_shape_names_the_nodes_of_a_tree_that_is_not_full() -> None:
    """So nobody waits for children that no stored tree has."""
    chain, wide = [-1, 0, 1, 2], [-1, -1, 0, 0, 1]
    trees = [DraftTree(np.arange(len(parents)), np.array(parents)) for parents in (chain[:2], [-1, -1, 0, 2], wide)]
    answer = made_up_trace(1).requests[0]

    def shape(*drafts: DraftTree) -> DraftShape:
        some = Proposals.of([drafts[i % len(drafts)] for i in range(len(answer.output))])
        return largest_shape(Trace((answer,), {"it": (some,)}, {}), "it")

    assert shape(*trees[:2]).paths == ((0,), (1,), (0, 0), (0, 0, 0))
    assert shape(trees[0]) == DraftShape((1, 1), 2)
    assert shape(*trees) == DraftShape((2, 2, 1), 5)  # none of them is all of it


def test_requests_find_their_answers() -> None:
    trace = made_up_trace(2)
    assert [answer_of(asks(answer, 7).id) for answer in trace.requests] == [answer.id for answer in trace.requests]
    world = simulation(trace, OffPolicy())
    short = min(trace.requests, key=lambda answer: len(answer.output))
    longer = asks(short, 0).params
    with pytest.raises(ValueError, match="more than its answer has"):
        world.add(Request(short.id, [1], type(longer)(max_tokens=len(short.output) + 1)))
