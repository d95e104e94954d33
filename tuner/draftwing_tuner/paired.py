"""Compares policies on live traffic: they take turns, in blocks of steps that mirror each other.

A round runs every policy twice, forth and back (A B B A), so that whatever drifts slowly over the round hits all of
them alike. Output does not depend on the policy (rule R1): the traffic goes on as if nothing had changed. Only steps at
full concurrency count, and none that prefills.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, stdev

from draftwing.core import Request
from draftwing.engine.step import Engine
from draftwing.policy.base import Policy
from draftwing.policy.modes import OffPolicy

# Student's t, 97.5 %, by degrees of freedom.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
Round = Mapping[str, Seq["Block"]]  # by policy, its two blocks
WARM_STEPS = 2  # of a block, not counted: the first ones pay for what the policy before left behind


@dataclass(slots=True)
class Block:
    """What one policy did in a block. drafting: steps that verified a draft."""

    steps: int = 0
    drafting: int = 0
    tokens: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """A rate relative to plain's: the mean over rounds, and its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class Standing:
    """One policy beside plain decoding. drafting: share of its steps that verified a draft. tokens: a step."""

    policy: str
    cpu: Ratio
    wall: Ratio
    drafting: float
    tokens: float
    rounds: int


class Traffic:
    """Keeps as many requests in the engine as `concurrency` says, as long as there are more."""

    def __init__(self, engine: Engine, requests: Iterator[Request], concurrency: int) -> None:
        self.engine, self.concurrency = engine, concurrency
        self._requests = requests
        self._added: list[str] = []

    def fill(self) -> None:
        """RuntimeError when there are no more requests."""
        while self.engine.running + self.engine.waiting < self.concurrency:
            try:
                request = next(self._requests)
            except StopIteration:
                raise RuntimeError("the traffic ended before the comparison did") from None
            self.engine.add(request)
            self._added.append(request.id)

    def drain(self) -> None:
        """Cancel what runs."""
        for request in self._added:
            self.engine.cancel(request)
        self._added.clear()


def run_block(
    traffic: Traffic,
    policy: Policy,
    steps: int,
    *,
    cpu: Callable[[], float] = time.process_time,
    wall: Callable[[], float] = time.perf_counter,
) -> Block:
    """So many counted steps under this policy, after a few that aren't."""
    engine, block, seen = traffic.engine, Block(), 0
    engine.policy = policy
    while block.steps < steps:
        traffic.fill()
        cpu_at, wall_at = cpu(), wall()
        engine.step()
        cpu_s, wall_s = cpu() - cpu_at, wall() - wall_at
        record = engine.records[-1]
        if record.prefill_rows or record.sequences < traffic.concurrency:
            continue
        seen += 1
        if seen > WARM_STEPS:
            block.steps += 1
            block.drafting += record.drafted > 0
            block.tokens += record.committed
            block.cpu_s += cpu_s
            block.wall_s += wall_s
    return block


def run_round(traffic: Traffic, policies: Mapping[str, Policy], steps: int) -> dict[str, list[Block]]:
    """Each policy's two blocks: forth and back. `policies` begins with plain decoding."""
    blocks: dict[str, list[Block]] = {name: [] for name in policies}
    for name in [*policies, *reversed(list(policies))]:
        blocks[name].append(run_block(traffic, policies[name], steps))
    return blocks


def compare(rounds: Seq[Round], plain: str) -> list[Standing]:
    """Every policy but plain, beside plain. A round's ratio is that of the mean log rates of its two blocks."""
    found = []
    for name in rounds[0]:
        if name == plain:
            continue
        blocks = [block for one in rounds for block in one[name]]
        found.append(
            Standing(
                policy=name,
                cpu=ratio([log_ratio(one, name, plain, "cpu") for one in rounds]),
                wall=ratio([log_ratio(one, name, plain, "wall") for one in rounds]),
                drafting=sum(b.drafting for b in blocks) / sum(b.steps for b in blocks),
                tokens=sum(b.tokens for b in blocks) / sum(b.steps for b in blocks),
                rounds=len(rounds),
            )
        )
    return found


def plain_policy() -> Policy:
    return OffPolicy()


def log_ratio(one: Round, name: str, other: str, clock: str) -> float:
    """Of a policy's rate to another one's, in a round, by the clock `cpu` or `wall`."""
    return _log_rate(one[name], f"{clock}_s") - _log_rate(one[other], f"{clock}_s")


def _log_rate(blocks: Seq[Block], clock: str) -> float:
    return fmean(log(block.tokens / getattr(block, clock)) for block in blocks)


def ratio(logs: Seq[float]) -> Ratio:
    """Of log-ratios, one a round. One round alone has no interval: it reaches from 0 to infinity."""
    mean = fmean(logs)
    if len(logs) < 2:
        return Ratio(exp(mean), 0.0, float("inf"))
    reach = STUDENT[min(len(logs) - 2, len(STUDENT) - 1)] * stdev(logs) / sqrt(len(logs))
    return Ratio(exp(mean), exp(mean - reach), exp(mean + reach))
