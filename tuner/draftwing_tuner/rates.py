"""What a draft shape makes of traffic that stays at one batch, by replay of a trace on measured costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from draftwing.core import DraftShape
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.scheduler import Limits
from draftwing.errors import ConfigError
from draftwing.policy.base import Policy
from draftwing.policy.cost import CostModel
from draftwing.policy.modes import FixedPolicy, OffPolicy
from draftwing_tuner.replay import ReplayDrafter
from draftwing_tuner.simulate import Simulation, asks
from draftwing_tuner.tasks import Spread, in_turn
from draftwing_tuner.trace import Trace

BLOCK = 32


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sequences, and cached tokens of each when they begin to decode."""

    batch: int
    context: int

    def __str__(self) -> str:
        return f"batch {self.batch}, context {self.context}"


@dataclass(frozen=True, slots=True)
class Rate:
    """per_ms: committed tokens of the whole batch. tokens: of one sequence in a step."""

    per_ms: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Ground:
    """What is replayed. stop: how the drafter drafts, see `DrafterTraits`."""

    trace: Trace
    drafter: str
    costs: CostModel
    stop: Literal["incremental", "block"] = "incremental"

    def replay_drafter(self) -> ReplayDrafter:
        return ReplayDrafter(self.trace, self.drafter, self.stop)


Job = tuple[Bucket, DraftShape]


def rate_of(ground: Ground, job: Job) -> Rate:
    """Over all answers, each at least once. Only steps at the bucket's batch count, and none that prefills.

    ConfigError where the answers are too short for that.
    """
    bucket, shape = job
    policy: Policy = FixedPolicy(ground.drafter, shape) if shape.nodes else OffPolicy()
    answers = [replace(r, prompt=None, prompt_len=bucket.context) for r in ground.trace.requests if len(r.output) > 1]
    longest = max((len(answer.output) for answer in answers), default=0)
    tokens = bucket.batch * (bucket.context + longest + policy.largest.nodes + 2 * BLOCK)
    simulation = Simulation(
        ground.trace,
        costs=ground.costs,
        policy=policy,
        drafter=ground.replay_drafter(),
        pool=BlockPool(-(-tokens // BLOCK) + bucket.batch, BLOCK, prefix=False),
        limits=Limits(bucket.batch, 2**20, 2**20, 2**20),
    )
    laps = -(-3 * bucket.batch // max(len(answers), 1))
    waiting = [asks(answer, lap) for lap in range(laps) for answer in answers][::-1]
    committed = steps = 0
    spent = 0.0
    while simulation.busy or waiting:
        while waiting and simulation.running + simulation.waiting < bucket.batch:
            simulation.add(waiting.pop())
        before = simulation.clock()
        step = simulation.step()
        if step.sequences == bucket.batch and step.rows == step.sequences + step.nodes:
            committed += step.committed
            steps += 1
            spent += simulation.clock() - before
    if not steps:
        raise ConfigError(f"the answers are too short to keep {bucket.batch} sequences busy; give longer --max-tokens")
    return Rate(committed / spent / 1e3, committed / steps / bucket.batch)


class Replay:
    """Rates of shapes over one ground; each is computed once, many of them side by side."""

    def __init__(self, ground: Ground, spread: Spread = in_turn) -> None:
        self.ground, self.spread = ground, spread
        self._known: dict[Job, Rate] = {}

    def learn(self, jobs: Iterable[Job]) -> None:
        """The rates of all of them."""
        missing = [job for job in dict.fromkeys(jobs) if job not in self._known]
        if missing:
            self._known.update(zip(missing, self.spread(rate_of, self.ground, missing), strict=True))

    def rate(self, bucket: Bucket, shape: DraftShape) -> Rate:
        self.learn([(bucket, shape)])
        return self._known[bucket, shape]
