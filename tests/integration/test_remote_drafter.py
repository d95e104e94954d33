"""Drafters behind the channel: the same tokens as plain decoding whatever they do, and drafts while they live."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from draftwing.core import DraftTree, Request, SamplingParams, StepPlan
from draftwing.drafters.base import Controller, Drafter, DrafterTraits, SequenceView, TargetInfo
from draftwing.drafters.ngram import NgramDrafter
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.step import Engine
from draftwing.parallel.channel import ChannelServer
from draftwing.parallel.draft_server import DraftServer
from draftwing.parallel.endpoint import Endpoint
from draftwing.parallel.remote_drafter import RemoteDrafter, RemoteOptions, within
from draftwing.testing.mock_draft_model import MockDraftModel
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.run_engine import Received, make_engine, run_to_end
from tests.integration.serve_tools import eventually

BEHAVIOUR = MockBehaviour(vocab_size=32, order=1, surprise=0.3)
BLOCKS, BLOCK_TOKENS = 256, 4
TRAITS = DrafterTraits(trees=True)
WAIT = RemoteOptions(deadline_s=10.0)  # a busy machine must not look like a late drafter


class Slow(NgramDrafter):
    """Answers when the deadline has long passed."""

    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Any = None
    ) -> list[DraftTree]:
        time.sleep(0.02)
        return super().propose(sequences, plan, controller, base)


class Counting(NgramDrafter):
    """asked: drafts that somebody wanted. slow_for: calls that take longer than any deadline here."""

    def __init__(self, slow_for: int = 0) -> None:
        super().__init__()
        self.asked, self.calls, self.slow_for = 0, 0, slow_for

    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Any = None
    ) -> list[DraftTree]:
        self.asked += len(sequences)
        self.calls += 1
        time.sleep(0.3 if self.calls <= self.slow_for else 0)
        return super().propose(sequences, plan, controller, base)


class Raising(NgramDrafter):
    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Any = None
    ) -> list[DraftTree]:
        raise RuntimeError("as planned")


class Wild(NgramDrafter):
    """Ids that no vocabulary has, and parents that aren't there."""

    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Any = None
    ) -> list[DraftTree]:
        return [DraftTree(np.array([10**6, 3]), np.array([7, -1])) for _ in sequences]


@contextmanager
def served(drafter: Drafter, blocks: int = BLOCKS) -> Iterator[tuple[Endpoint, DraftServer]]:
    drafter.bind(TargetInfo(BEHAVIOUR.vocab_size, 4096))
    pool = BlockPool(blocks, BLOCK_TOKENS, prefix=False) if isinstance(drafter, MockDraftModel) else None
    drafter.reserve(blocks, BLOCK_TOKENS)
    channel = ChannelServer()
    server = DraftServer(drafter, channel, pool, BEHAVIOUR.vocab_size)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield channel.endpoint, server
    finally:
        server.request_stop()
        thread.join()
        channel.close()


def requests(count: int, *, tokens: int = 60, temperature: float = 0.0) -> list[Request]:
    draw = np.random.default_rng(3)
    return [
        Request(
            f"r{i}",
            draw.integers(0, BEHAVIOUR.vocab_size, 5 + 7 * i).tolist(),
            SamplingParams(max_tokens=tokens - 5 * i, temperature=temperature, seed=i, ignore_eos=True),
        )
        for i in range(count)
    ]


def engine_with(drafter: Drafter | None, **settings: Any) -> Engine:
    target = MockTarget(BEHAVIOUR, slots=BLOCKS * BLOCK_TOKENS)
    branching = (1, 1, 1, 1) if drafter else ()
    return make_engine(
        target, drafter=drafter, **{"branching": branching, "blocks": BLOCKS, "block_tokens": BLOCK_TOKENS, **settings}
    )


def plain(wanted: list[Request]) -> dict[str, list[int]]:
    return {name: each.tokens for name, each in run_to_end(engine_with(None), wanted).items()}


def tokens_of(received: dict[str, Received]) -> dict[str, list[int]]:
    return {name: each.tokens for name, each in received.items()}


@pytest.fixture
def remote() -> Iterator[Callable[..., RemoteDrafter]]:
    made: list[RemoteDrafter] = []

    def make(endpoints: Seq[Endpoint], options: RemoteOptions = WAIT, traits: DrafterTraits = TRAITS) -> RemoteDrafter:
        made.append(RemoteDrafter(traits, options, endpoints))
        return made[-1]

    yield make
    for drafter in made:
        drafter.close()


Make = Callable[..., RemoteDrafter]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("count", [1, 4])
def test_drafts_arrive_and_change_nothing(remote: Make, temperature: float, count: int) -> None:
    wanted = requests(count, temperature=temperature)
    with served(NgramDrafter()) as (endpoint, _):
        drafter = remote([endpoint])
        engine = engine_with(drafter)
        assert tokens_of(run_to_end(engine, wanted)) == plain(wanted)
    local = engine_with(NgramDrafter())
    run_to_end(local, requests(count, temperature=temperature))
    assert engine.counters.accepted_tokens == local.counters.accepted_tokens > 0
    assert drafter.counts.late == drafter.counts.dropped == 0


@pytest.mark.parametrize("branching", [(1, 1, 1), (3, 2, 1)])
def test_a_drafter_with_pages_of_its_own(remote: Make, branching: tuple[int, ...]) -> None:
    """More sequences than its pages hold: those that are short of blocks draft less, and nothing is wrong."""
    wanted = requests(4)
    for blocks in (BLOCKS, 24):
        model = MockDraftModel(MockTarget(BEHAVIOUR, slots=BLOCKS * BLOCK_TOKENS))
        with served(model, blocks) as (endpoint, server):
            engine = engine_with(remote([endpoint], traits=model.traits), branching=branching)
            assert tokens_of(run_to_end(engine, requests(4))) == plain(wanted)
            assert server.failures == 0
        assert engine.counters.accepted_tokens > 20


def test_two_lanes_take_turns_and_find_their_drafts(remote: Make) -> None:
    wanted = requests(5)
    with served(NgramDrafter()) as (endpoint, _):
        drafter = remote([endpoint], RemoteOptions(deadline_s=10.0, ahead=True))
        engine = engine_with(drafter, lanes=2)
        batches: list[int] = []
        engine.telemetry.listener = lambda record: batches.append(record.sequences)
        assert tokens_of(run_to_end(engine, requests(5))) == plain(wanted)
    assert engine.counters.accepted_tokens > 20
    assert max(batches) == 3  # of five


@pytest.mark.parametrize("ahead", [True, False])
def test_the_next_draft_is_asked_for_when_tokens_are_committed(remote: Make, ahead: bool) -> None:
    counting = Counting()
    with served(counting) as (endpoint, _):
        drafter = remote([endpoint], RemoteOptions(deadline_s=10.0, ahead=ahead))
        engine = engine_with(drafter)
        engine.add(requests(1)[0])
        for _ in range(6):
            engine.step()
        used = drafter.counts.rounds
        assert used > 3
        if ahead:
            eventually(lambda: counting.asked == used + 1, within_s=10)
        else:
            time.sleep(0.1)
            assert counting.asked == used


def test_rows_of_an_accepted_chain_are_not_run_again(remote: Make) -> None:
    """The drafter is told which of its nodes were accepted, as it would be beside the target."""
    caught_up = []
    for elsewhere in (False, True):
        model = MockDraftModel(MockTarget(BEHAVIOUR, slots=BLOCKS * BLOCK_TOKENS))
        if elsewhere:
            with served(model) as (endpoint, _):
                engine = engine_with(remote([endpoint], traits=model.traits))
                run_to_end(engine, requests(2))
        else:
            model.reserve(BLOCKS, BLOCK_TOKENS)
            engine = engine_with(model)
            run_to_end(engine, requests(2))
        assert engine.counters.accepted_tokens > 20
        caught_up.append(model.caught_up)
    assert caught_up[0] == caught_up[1]


def test_a_drafter_that_is_in_time_again_is_waited_for_again(remote: Make) -> None:
    with served(Counting(slow_for=4)) as (endpoint, _):
        drafter = remote([endpoint], RemoteOptions(deadline_s=0.15))
        engine = engine_with(drafter)
        engine.add(Request("long", [3, 1, 2], SamplingParams(max_tokens=900, temperature=0, ignore_eos=True)))
        while engine.busy and not engine.counters.drafts:
            engine.step()
            time.sleep(0.02)
        assert drafter.counts.late >= 2
        assert engine.counters.drafts == 1
        before = drafter.counts.late
        for _ in range(20):
            engine.step()
        assert engine.counters.drafts > 2
        assert drafter.counts.late == before


def test_a_target_that_has_gone_is_forgotten(remote: Make) -> None:
    with served(NgramDrafter()) as (endpoint, server):
        drafter = remote([endpoint])
        engine = engine_with(drafter)
        for request in requests(2):
            engine.add(request)
        for _ in range(4):
            engine.step()
        eventually(lambda: len(server._mirrors) == 2, within_s=10)
        drafter.close()
        eventually(lambda: not server._mirrors, within_s=30)


@pytest.mark.parametrize("lanes", [2, 3])
def test_lanes_go_on_in_turns(lanes: int) -> None:
    engine = engine_with(None, lanes=lanes)
    received = {request.id: Received() for request in requests(6)}
    for request in requests(6):
        engine.add(request)
    for _ in range(10 + 4 * lanes):
        for emission in engine.step():
            received[emission.request_id].take(emission)
    counts = [len(each.tokens) for each in received.values()]
    assert min(counts) >= 4
    assert max(counts) - min(counts) <= 10


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_lanes_starve_nobody(lanes: int) -> None:
    wanted = requests(6, tokens=40)
    engine = engine_with(NgramDrafter(), lanes=lanes, blocks=40)
    assert tokens_of(run_to_end(engine, requests(6, tokens=40))) == plain(wanted)


@pytest.mark.parametrize("kind", [Slow, Raising, Wild])
def test_a_bad_drafter_costs_only_its_drafts(remote: Make, kind: type[NgramDrafter]) -> None:
    wanted = requests(2)
    with served(kind()) as (endpoint, _):
        drafter = remote([endpoint], RemoteOptions(deadline_s=0.002) if kind is Slow else WAIT)
        engine = engine_with(drafter)
        assert tokens_of(run_to_end(engine, wanted)) == plain(requests(2))
    assert engine.counters.accepted_tokens == 0
    if kind is Slow:
        assert drafter.counts.late == 2  # its patience, then nobody waits any more


def test_a_drafter_that_dies_and_one_that_takes_its_place(remote: Make) -> None:
    wanted, received = requests(3, tokens=90), {f"r{i}": Received() for i in range(3)}
    drafter = remote([], RemoteOptions(deadline_s=0.5))
    engine = engine_with(drafter)
    for request in requests(3, tokens=90):
        engine.add(request)

    def steps(count: int) -> int:
        before = engine.counters.drafts
        for _ in range(count):
            for emission in engine.step():
                received[emission.request_id].take(emission)
        return engine.counters.drafts - before

    assert steps(5) == 0  # none is there yet
    with served(NgramDrafter()) as (endpoint, _):
        drafter.connect([endpoint])
        assert steps(14) > 0
    late = drafter.counts.late
    assert steps(6) == 0
    assert drafter.counts.late - late <= 2
    with served(NgramDrafter()) as (endpoint, _):
        drafter.connect([endpoint])
        while engine.busy:
            steps(1)
    assert engine.counters.accepted_tokens > 0
    assert tokens_of(received) == plain(wanted)


def test_one_that_began_anew_is_told_again(remote: Make) -> None:
    """Its port and keys are the same, its memory is gone: what it doesn't know is opened again."""
    wanted = requests(2, tokens=90)
    with served(NgramDrafter()) as (endpoint, server):
        engine = engine_with(remote([endpoint]))
        for request in requests(2, tokens=90):
            engine.add(request)
        for _ in range(8):
            engine.step()
        before = engine.counters.drafts
        server._mirrors.clear()
        received = run_to_end(engine)
        assert engine.counters.drafts > before
    assert all(each.tokens == plain(wanted)[name][-len(each.tokens) :] for name, each in received.items())


def test_nothing_is_kept_of_sequences_that_are_over(remote: Make) -> None:
    with served(NgramDrafter()) as (endpoint, server):
        drafter = remote([endpoint])
        engine = engine_with(drafter)
        run_to_end(engine, requests(3))
        run_to_end(engine, [Request("last", [1, 2, 3], SamplingParams(max_tokens=3, temperature=0))])
        assert not drafter._followed
        drafter.propose([], StepPlan("", ()), None)  # type: ignore[arg-type]
        eventually(lambda: not server._mirrors, within_s=10)


def test_several_drafters_share_the_sequences(remote: Make) -> None:
    with served(NgramDrafter()) as (one, first), served(NgramDrafter()) as (two, second):
        engine = engine_with(remote([one, two]))
        seen: list[tuple[int, int]] = []
        engine.telemetry.listener = lambda _: seen.append((len(first._mirrors), len(second._mirrors)))
        assert tokens_of(run_to_end(engine, requests(8))) == plain(requests(8))
    assert engine.counters.accepted_tokens > 0
    assert max(a for a, _ in seen) > 0
    assert max(b for _, b in seen) > 0


def test_a_draft_is_cut_to_a_smaller_shape() -> None:
    from draftwing.core import DraftShape

    tree = DraftTree(np.array([1, 2, 3, 4, 5]), np.array([-1, -1, 0, 0, 2]), np.ones(5, dtype=np.float32))
    assert within(tree, DraftShape((1, 1), 3)).tokens.tolist() == [1, 3]
    assert within(tree, DraftShape((2, 2, 1), 5)) is tree
    assert within(tree, DraftShape((2,), 1)).tokens.tolist() == [1]
    assert len(within(tree, DraftShape())) == 0
