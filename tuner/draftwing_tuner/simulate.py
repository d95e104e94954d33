"""The engine's loop over stored text: any policy, any arrivals, any cost model, and no model to run.

Scheduler, cache bookkeeping, drafting, the policy's inputs and what it learns from are the engine's own. Only the
forward is missing: the text says what the target would choose, a draft is walked against it, and a virtual clock passes
by the cost model. A live engine on such a clock, with a target that emits the same text, makes the same plans at the
same times, step for step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from draftwing.core import DraftTree, EngineCounters, IntArray, Request, SamplingParams
from draftwing.drafters.base import Accepted, Drafter
from draftwing.engine import commit
from draftwing.engine.admission import Admission
from draftwing.engine.drafting import Drafting
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.planning import note_drafted, plan_inputs, step_result
from draftwing.engine.scheduler import Limits, Scheduler
from draftwing.engine.sequence import Sequence
from draftwing.policy.base import Policy
from draftwing.policy.cost import CostModel
from draftwing_tuner.replay import MARK, answer_of
from draftwing_tuner.trace import Trace, TraceRequest
from draftwing_tuner.virtual import PricedDrafter, Prices, VirtualClock

VOCABULARY = 2**31 - 1
CONTEXT = 2**20


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did. rows: of the forward. nodes: drafted ones verified. ended: ids of requests that left."""

    sequences: int
    rows: int
    nodes: int
    committed: int
    ended: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Served:
    """A request that was answered: its tokens, and when it came and left, in seconds."""

    id: str
    tokens: int
    came: float
    ended: float


class Simulation:
    """Stands where an engine stands: add requests, step, read the clock. Ids of requests: see `replay.MARK`."""

    def __init__(
        self,
        trace: Trace,
        *,
        costs: CostModel,
        policy: Policy,
        drafter: Drafter,
        pool: BlockPool,
        limits: Limits,
        clock: VirtualClock | None = None,
    ) -> None:
        """drafter: bound already."""
        self.clock = clock or VirtualClock()
        self.policy = policy
        self.counters = EngineCounters()
        self.scheduler = Scheduler(pool, limits, self.counters)
        self._prices = Prices(costs)
        self._drafting = Drafting(PricedDrafter(drafter, self._prices, self.clock), VOCABULARY)
        self._texts: Mapping[str, Seq[int]] = {request.id: request.output for request in trace.requests}
        self._sequences: dict[str, Sequence] = {}
        self._came: dict[str, float] = {}
        self._over: list[Sequence] = []  # in this step
        self.served: list[Served] = []
        self._admission = Admission(
            pool=pool, context=CONTEXT, queue=limits.queue, vocab_size=VOCABULARY, eos_token_ids=(), decoder=None
        )

    @property
    def busy(self) -> bool:
        return bool(self._sequences)

    @property
    def waiting(self) -> int:
        return len(self.scheduler.waiting)

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    def add(self, request: Request) -> None:
        """As the engine's. KeyError where the trace has no such answer."""
        if request.params.max_tokens > len(self._texts[answer_of(request.id)]):
            raise ValueError(f"{request.id} asks for {request.params.max_tokens} tokens, more than its answer has")
        sequence = self._admission.admit(request, len(self._sequences), waiting=self.waiting)
        self._sequences[request.id] = sequence
        self._came[request.id] = self.clock()
        self.scheduler.add(sequence)

    def step(self) -> Step:
        """In the order of `Engine.step`."""
        began = self.clock()
        schedule = self.scheduler.schedule()
        for sequence in self.scheduler.preempted:
            self._drafting.release(sequence)
        self.counters.preemptions += len(self.scheduler.preempted)
        inputs = plan_inputs(schedule, self.scheduler)
        plan = self.policy.decide(inputs)
        self.scheduler.hold_drafts(schedule, plan)
        drafts = self._drafting.propose(schedule.decoding, plan, self.policy.controller(inputs, plan))
        drafted_at = self.clock()
        drafts.cut(self.policy.cut(inputs, plan, drafts.made))
        nodes = sum(map(len, drafts.trees))
        rows = schedule.rows + nodes
        batch = len(schedule.decoding) + len(schedule.prefilling)
        self.clock.spend(self._prices.verify(rows, inputs.context, batch))
        accepted = [
            Accepted(drafts.verified[i][path], self._commit(sequence, 1 + len(path)))
            for i, sequence in enumerate(schedule.decoding)
            for path in (self._walk(sequence, drafts.trees[i]),)
        ]
        first = [self._commit(sequence, chunk) for sequence, chunk in schedule.prefilling]
        note_drafted(schedule, drafts, [one.count for one in accepted])
        self._drafting.prefilled([sequence for sequence, _ in schedule.prefilling])
        self._drafting.committed(schedule.decoding, accepted)
        ended = self._leave()
        self._count(drafts.trees, [len(one.nodes) for one in accepted], sum(one.count for one in accepted) + sum(first))
        result = step_result(
            drafts,
            [one.nodes for one in accepted],
            [one.count for one in accepted],
            rows=rows,
            draft_s=drafted_at - began,
            step_s=self.clock() - began,
            ended=ended,
        )
        self.policy.observe(inputs, plan, result)
        return Step(len(schedule.decoding), rows, nodes, sum(first) + sum(one.count for one in accepted), ended)

    def _walk(self, sequence: Sequence, draft: DraftTree) -> IntArray:
        """The nodes that the text follows."""
        text, at, node = self._texts[answer_of(sequence.id)], sequence.output_len, -1
        path: list[int] = []
        for index, (token, parent) in enumerate(zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True)):
            if parent == node and at < len(text) and token == text[at]:
                path.append(index)
                node, at = index, at + 1
        return np.array(path, dtype=np.int64)

    def _commit(self, sequence: Sequence, rows: int) -> int:
        """So many rows are in the cache, and what the text has after them is output; the tokens that became so.

        A prompt's chunk brings a token with its last row alone, a draft's path with every row.
        """
        at, since, pending = sequence.output_len, sequence.kv_len, sequence.pending
        count = rows if pending == 1 else int(rows == pending)
        tokens = list(self._texts[answer_of(sequence.id)][at : at + count])
        outcome = commit.append(sequence, tokens, [True] * len(tokens), ())
        sequence.kv_len += rows
        self.scheduler.keep(sequence, since)
        if outcome.finish_reason is not None:
            self._over.append(sequence)
        return len(outcome.committed)

    def _leave(self) -> tuple[str, ...]:
        over, self._over = self._over, []
        for sequence in over:
            del self._sequences[sequence.id]
            self.scheduler.remove(sequence)
            self._drafting.release(sequence)
            self.served.append(Served(sequence.id, sequence.output_len, self._came.pop(sequence.id), self.clock()))
        return tuple(sequence.id for sequence in over)

    def _count(self, drafts: Seq[DraftTree], accepted: Seq[int], generated: int) -> None:
        """What of the engine's counters says how drafting went."""
        self.counters.steps += 1
        self.counters.generated_tokens += generated
        self.counters.drafts += sum(len(draft) > 0 for draft in drafts)
        self.counters.draft_tokens += sum(map(len, drafts))
        self.counters.accepted_tokens += sum(accepted)


class World(Protocol):
    """What requests arrive at: an engine or a simulation."""

    @property
    def busy(self) -> bool: ...
    @property
    def waiting(self) -> int: ...
    @property
    def running(self) -> int: ...
    def add(self, request: Request) -> None: ...
    def step(self) -> object: ...


class Arrivals(Protocol):
    def take(self, now: float, present: int) -> list[Request]:
        """Requests that arrive by now, `present` others being there still."""
        ...

    def next_at(self) -> float | None:
        """When the next one comes, if nobody is there; None: no more come."""
        ...


class Scripted:
    """Each at its own time, in seconds."""

    def __init__(self, script: Iterable[tuple[float, Request]]) -> None:
        self._left = deque(sorted(script, key=lambda entry: entry[0]))

    def take(self, now: float, present: int) -> list[Request]:
        taken = []
        while self._left and self._left[0][0] <= now:
            taken.append(self._left.popleft()[1])
        return taken

    def next_at(self) -> float | None:
        return self._left[0][0] if self._left else None


class Closed:
    """So many at a time: the next one comes when one has left."""

    def __init__(self, requests: Iterable[Request], concurrency: int) -> None:
        self._left, self._concurrency = deque(requests), concurrency

    def take(self, now: float, present: int) -> list[Request]:
        return [self._left.popleft() for _ in range(min(len(self._left), self._concurrency - present))]

    def next_at(self) -> float | None:
        return 0.0 if self._left else None


def drive(world: World, arrivals: Arrivals, clock: VirtualClock) -> int:
    """Steps until nobody is there and no more come; how many."""
    steps = 0
    while True:
        for request in arrivals.take(clock(), world.waiting + world.running):
            world.add(request)
        if world.busy:
            world.step()
            steps += 1
        elif (at := arrivals.next_at()) is not None:
            clock.wait_until(at)
        else:
            return steps


def asks(answer: TraceRequest, number: int, most: int | None = None) -> Request:
    """A request that the trace answers; number tells apart those that ask for the same answer."""
    tokens = len(answer.output) if most is None else min(len(answer.output), most)
    params = SamplingParams(max_tokens=tokens, temperature=answer.temperature, seed=answer.seed)
    prompt = [0] * answer.prompt_len if answer.prompt is None else list(answer.prompt)
    return Request(f"{answer.id}{MARK}{number}", prompt, params)
