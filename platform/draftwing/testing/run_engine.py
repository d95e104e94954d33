"""Runs an engine to its end, and makes engines around a mock target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from draftwing.core import AcceptanceSummary, DraftShape, Emission, FinishReason, Request, TokenLogprob
from draftwing.drafters.base import Drafter, TargetInfo
from draftwing.drafters.none import NoneDrafter
from draftwing.engine.assemble import TargetFacts, assemble
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.runner import Runner
from draftwing.engine.scheduler import Limits
from draftwing.engine.step import Engine
from draftwing.engine.text import Decoder
from draftwing.policy.base import Policy
from draftwing.policy.modes import FixedPolicy, OffPolicy


@dataclass(slots=True)
class Received:
    """Everything one request's emissions brought, joined."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    summary: AcceptanceSummary | None = None
    cached_tokens: int = 0
    emissions: int = 0

    def take(self, emission: Emission) -> None:
        if self.finish_reason is not None:
            raise AssertionError(f"{emission.request_id} got an emission after its last one")
        self.emissions += 1
        self.tokens += emission.token_ids
        self.text += emission.text
        self.logprobs += emission.logprobs or []
        self.finish_reason, self.stop_reason = emission.finish_reason, emission.stop_reason
        self.error, self.summary, self.cached_tokens = emission.error, emission.summary, emission.cached_tokens


def run_to_end(engine: Engine, requests: Iterable[Request] = (), *, most_steps: int = 10_000) -> dict[str, Received]:
    """Add the requests and step until the engine is idle. AssertionError if it never is, or leaks cache blocks."""
    received: dict[str, Received] = {}
    for request in requests:
        engine.add(request)
        received[request.id] = Received()
    for _ in range(most_steps):
        if not engine.busy:
            break
        for emission in engine.step():
            received.setdefault(emission.request_id, Received()).take(emission)
    if engine.busy:
        raise AssertionError(f"still busy after {most_steps} steps")
    assert_idle(engine)
    return received


def assert_idle(engine: Engine) -> None:
    """Nothing waits, nothing runs, no cache block is held, and all are accounted for."""
    engine.check()
    assert not engine.busy
    assert engine.step() == []
    assert engine.pool.free == engine.pool.blocks, f"{engine.pool.blocks - engine.pool.free} cache blocks are leaked"


def make_engine(
    runner: Runner,
    *,
    drafter: Drafter | None = None,
    branching: Sequence[int] = (),
    nodes: int | None = None,
    blocks: int = 256,
    block_tokens: int = 4,
    sequences: int = 16,
    queue: int = 64,
    batch_tokens: int = 512,
    prefill_chunk: int = 64,
    context: int = 4096,
    eos_token_ids: Sequence[int] = (),
    decoder: Decoder | None = None,
    prefix: bool = True,
    lanes: int = 1,
    rejection: bool = False,
    policy: Policy | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Engine:
    """An engine around any runner. branching: children per node and depth of each draft, () for plain decoding.

    nodes: node budget of a draft, the whole tree by default. policy: in the place of what branching says.
    The runner must have blocks * block_tokens cache slots.
    """
    drafter = drafter or NoneDrafter()
    drafter.bind(TargetInfo(runner.vocab_size, context, eos_token_ids=tuple(eos_token_ids), rejection=rejection))
    size, level = 0, 1
    for width in branching:
        level *= width
        size += level
    shape = DraftShape(tuple(branching), size if nodes is None else nodes)
    return assemble(
        runner,
        TargetFacts(context, tuple(eos_token_ids), decoder),
        pool=BlockPool(blocks, block_tokens, prefix=prefix),
        limits=Limits(sequences, queue, batch_tokens, prefill_chunk, lanes),
        drafter=drafter,
        policy=policy or (FixedPolicy("test", shape) if branching else OffPolicy()),
        rejection=rejection,
        clock=clock,
    )
