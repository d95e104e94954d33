"""Any traffic on a mock target: outputs are the oracle's, nothing leaks, everything finishes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftwing.core import Request, SamplingParams
from draftwing.drafters.base import Drafter
from draftwing.drafters.ngram import NgramDrafter
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.scheduler import Scheduler
from draftwing.engine.sequence import Sequence
from draftwing.engine.step import Engine
from draftwing.errors import OverloadedError
from draftwing.testing.bytes_tokenizer import EOS, BytesTokenizer
from draftwing.testing.drafters import OracleDrafter
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.plain_loop import PlainOutput, plain_decode
from draftwing.testing.run_engine import Received, assert_idle, make_engine

TOKENIZER = BytesTokenizer()
LETTERS = dict.fromkeys((97, 98, 99, 0xC3, 0xA9), 8.0)  # a, b, c, and the two halves of é


@dataclass(frozen=True)
class Arrival:
    """A request, the step before which it comes, and the step before which it is cancelled, if it is."""

    request: Request
    step: int
    cancel: int | None


def params(draw: st.DrawFn) -> SamplingParams:
    sampled = draw(st.booleans())
    most = draw(st.integers(1, 24))
    cuts: dict[str, Any] = draw(st.sampled_from(({}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.05, "top_p": 0.95})))
    penalties: dict[str, Any] = draw(
        st.sampled_from(({}, {"repetition_penalty": 1.3}, {"frequency_penalty": 0.4, "presence_penalty": 0.3}))
    )
    return SamplingParams(
        max_tokens=most,
        min_tokens=draw(st.sampled_from((0, most // 2))),
        temperature=0.8 if sampled else 0.0,
        seed=draw(st.integers(0, 2**64 - 1)),
        logit_bias=LETTERS,
        stop=draw(st.sampled_from(((), ("ab",), ("é", "cca")))),
        stop_token_ids=draw(st.sampled_from(((), (98,)))),
        ignore_eos=draw(st.booleans()),
        speculate=draw(st.integers(0, 4)) > 0,
        **cuts,
        **penalties,
    )


@st.composite
def traffic(draw: st.DrawFn) -> list[Arrival]:
    arrivals = []
    for number in range(draw(st.integers(1, 8))):
        prompt = draw(st.lists(st.sampled_from((97, 98, 99, 100, 256, 0xC3)), min_size=1, max_size=30))
        request = Request(f"r{number}", prompt, params(draw), choice=draw(st.integers(0, 2)))
        cancel = draw(st.none() | st.integers(0, 20))
        arrivals.append(Arrival(request, draw(st.integers(0, 12)), cancel))
    return arrivals


def drive(engine: Engine, arrivals: list[Arrival], setup: Setup) -> dict[str, Received]:
    """Step the engine through the traffic; checks its bookkeeping after every step."""
    received: dict[str, Received] = {}
    cancelled: set[str] = set()
    step = 0
    while step < 21 or engine.busy:
        for arrival in arrivals:
            if arrival.step == step:
                try:
                    engine.add(arrival.request)
                    received[arrival.request.id] = Received()
                except OverloadedError:
                    assert engine.waiting >= setup.queue  # more: preempted ones wait too
            if arrival.cancel == step and arrival.step <= step:
                engine.cancel(arrival.request.id)
                cancelled.add(arrival.request.id)
        for emission in engine.step():
            assert emission.request_id not in cancelled, "an emission after the cancellation"
            received[emission.request_id].take(emission)
        engine.check()
        step += 1
        assert step < 3000, "the engine never becomes idle"
    assert_idle(engine)
    return received


def oracle(target: MockTarget, request: Request) -> PlainOutput:
    return plain_decode(
        target,
        request.prompt_ids,
        request.params,
        choice=request.choice,
        eos_token_ids=(EOS,),
        decode=TOKENIZER.decode,
    )


def compare(got: Received, want: PlainOutput, *, whole: bool) -> None:
    """whole False: the request was cancelled, so that what came is the beginning of the oracle's."""
    if not whole:
        assert got.tokens == want.tokens[: len(got.tokens)]
        assert want.text.startswith(got.text)
        return
    assert got.tokens == want.tokens
    assert (got.finish_reason, got.stop_reason) == (want.finish_reason, want.stop_reason)
    assert got.text == want.text


BRANCHINGS = ((), (1,), (1, 1, 1, 1), (3,), (2, 2), (2, 1, 3), (1, 3, 1, 2, 1))


@dataclass(frozen=True)
class Setup:
    """An engine around a mock target: how it drafts, and the limits it lives with."""

    branching: tuple[int, ...]
    ngram: bool
    blocks: int
    block_tokens: int
    sequences: int
    batch_tokens: int
    prefill_chunk: int
    queue: int
    seed: int

    def behaviour(self) -> MockBehaviour:
        return MockBehaviour(
            vocab_size=TOKENIZER.vocab_size, order=2, surprise=2.0, eos_id=EOS, eos_rate=0.04, grid=0.25, seed=self.seed
        )

    def engine(self, arrivals: list[Arrival], plain: dict[str, PlainOutput]) -> Engine:
        needed = max(len(a.request.prompt_ids) + a.request.params.max_tokens for a in arrivals)
        blocks = max(self.blocks, -(-needed // self.block_tokens))  # what can never fit is refused at the door
        drafter: Drafter = NgramDrafter() if self.ngram else OracleDrafter(lambda view: plain[view.id].tokens, 0.7)
        return make_engine(
            MockTarget(self.behaviour(), slots=blocks * self.block_tokens),
            drafter=drafter,
            branching=self.branching,
            blocks=blocks,
            block_tokens=self.block_tokens,
            sequences=self.sequences,
            batch_tokens=self.batch_tokens,
            prefill_chunk=self.prefill_chunk,
            queue=self.queue,
            eos_token_ids=(EOS,),
            decoder=TOKENIZER,
        )


SETUPS = st.builds(
    Setup,
    branching=st.sampled_from(BRANCHINGS),
    ngram=st.booleans(),
    blocks=st.integers(1, 40),
    block_tokens=st.sampled_from((1, 2, 4, 8)),
    sequences=st.integers(1, 8),
    batch_tokens=st.integers(1, 64),
    prefill_chunk=st.integers(1, 64),
    queue=st.integers(1, 8),
    seed=st.integers(0, 5),
)
COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def check_traffic(arrivals: list[Arrival], setup: Setup) -> Engine:
    plain_target = MockTarget(setup.behaviour())
    plain = {arrival.request.id: oracle(plain_target, arrival.request) for arrival in arrivals}
    engine = setup.engine(arrivals, plain)
    received = drive(engine, arrivals, setup)
    cancelled = {a.request.id for a in arrivals if a.cancel is not None and a.cancel >= a.step}
    for name, got in received.items():
        compare(got, plain[name], whole=got.finish_reason is not None or name not in cancelled)
    return engine


@settings(COMMON, max_examples=100, derandomize=True)
@given(arrivals=traffic(), setup=SETUPS)
def test_any_traffic_gives_the_oracles_output(arrivals: list[Arrival], setup: Setup) -> None:
    check_traffic(arrivals, setup)


@pytest.mark.slow
@settings(COMMON, max_examples=1500)
@given(arrivals=traffic(), setup=SETUPS)
def test_much_traffic_gives_the_oracles_output(arrivals: list[Arrival], setup: Setup) -> None:
    check_traffic(arrivals, setup)


def crowd() -> list[Arrival]:
    """More than the cache of `CROWDED` holds at once, some of it cancelled in mid-decode."""
    arrivals = []
    for number in range(8):
        settings_ = SamplingParams(max_tokens=24, temperature=0.8, seed=number, logit_bias=LETTERS, ignore_eos=True)
        request = Request(f"r{number}", [97 + number % 3, 98, 99] * (1 + number), settings_)
        arrivals.append(Arrival(request, number // 2, 9 if number == 5 else None))
    return arrivals


CROWDED = Setup(
    branching=(2, 1, 1),
    ngram=False,
    blocks=14,
    block_tokens=4,
    sequences=8,
    batch_tokens=40,
    prefill_chunk=5,
    queue=8,
    seed=1,
)


def test_a_crowd_is_preempted_and_still_right() -> None:
    counters = check_traffic(crowd(), CROWDED).counters
    assert counters.preemptions > 5
    assert counters.finished == {"length": 7, "cancelled": 1}
    assert counters.accepted_tokens > 20
    assert counters.branched_tokens > 5


def kept_blocks(patch: pytest.MonkeyPatch) -> None:
    """A finished request keeps its blocks."""
    patch.setattr(Scheduler, "remove", lambda self, sequence: self.running.remove(sequence))


def forgotten_preemption(patch: pytest.MonkeyPatch) -> None:
    """A preempted request goes on as if its rows were still cached."""
    start = Scheduler._start

    def careless(self: Scheduler, sequence: Sequence, hits: list[int]) -> None:
        preempted = sequence.cached_tokens is not None
        start(self, sequence, hits)
        if preempted:
            sequence.kv_len = len(sequence.tokens) - 1

    patch.setattr(Scheduler, "_start", careless)


def shared_block(patch: pytest.MonkeyPatch) -> None:
    """The same block is handed out twice."""
    grow = BlockPool.grow

    def generous(self: BlockPool, table: list[int], tokens: int) -> bool:
        before = len(table)
        grown = grow(self, table, tokens)
        if len(table) > before > 0:
            table[-1] = table[0]
        return grown

    patch.setattr(BlockPool, "grow", generous)


@pytest.mark.parametrize("fault", [kept_blocks, forgotten_preemption, shared_block])
def test_a_planted_fault_is_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        check_traffic(crowd(), CROWDED)
