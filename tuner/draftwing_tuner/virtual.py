"""Time that passes by a cost model instead of a watch: a clock, what steps cost on it, and parts that spend it.

`PricedRunner` and `PricedDrafter` put the live engine on such a clock; the simulator spends the same amounts at the
same places, so that both read the same times, bit for bit.

B sequences of a call.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from torch import Tensor

from draftwing.core import DraftShape, DraftTree, IntArray, StepPlan
from draftwing.drafters.base import (
    ALONE,
    Accepted,
    BoolArray,
    CheckpointReader,
    Controller,
    Drafter,
    DrafterTraits,
    FeatureRows,
    Mesh,
    SequenceView,
    TargetInfo,
)
from draftwing.drafters.tree import depths
from draftwing.engine.batch import SequenceRows
from draftwing.engine.runner import Runner
from draftwing.engine.sequence import Sequence
from draftwing.policy.cost import CostModel


@dataclass(slots=True)
class VirtualClock:
    """Seconds, which pass only when someone spends them."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, ms: float) -> None:
        self.now += ms / 1e3

    def wait_until(self, at: float) -> None:
        self.now = max(self.now, at)


class Prices:
    """A cost model's milliseconds as plain numbers, remembered."""

    def __init__(self, costs: CostModel) -> None:
        self._rows = cache(lambda rows: float(costs.verify.rows_ms(rows)))
        self._context = costs.verify.context_ms
        self._overhead = cache(lambda batch: float(costs.overhead(batch)))
        self._level = cache(lambda rows: float(costs.draft(rows)) if rows else 0.0)
        self._catch_up = cache(lambda tokens: max(float(costs.catch_up(tokens)), 0.0) if tokens else 0.0)
        self._transport = costs.transport_ms

    def verify(self, rows: int, context: int, batch: int) -> float:
        """One forward and what surrounds it. context: cached tokens read. batch: sequences, prompts included."""
        return max(self._rows(rows) + self._context * context, 0.0) + self._overhead(batch)

    def level(self, depth: int, rows: int, behind: int) -> float:
        """One level of drafts that grows from so many nodes; the first also catches up with `behind` tokens."""
        return self._level(rows) + (self._catch_up(behind) + self._transport if depth == 0 else 0.0)


@dataclass(slots=True)
class PricedRunner:
    """A runner whose forwards take the time of a cost model."""

    inner: Runner
    prices: Prices
    clock: VirtualClock
    vocab_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.vocab_size = self.inner.vocab_size

    def forward(self, sequences: Seq[SequenceRows]) -> Tensor:
        rows = sum(len(s.tokens) for s in sequences)
        self.clock.spend(self.prices.verify(rows, sum(s.kv_len for s in sequences), len(sequences)))
        return self.inner.forward(list(sequences))

    def move(self, source: IntArray, target: IntArray) -> None:
        self.inner.move(source, target)


@dataclass(slots=True)
class _Spending:
    """A controller that charges each level to the clock, by the nodes from which it grows."""

    inner: Controller
    shapes: Seq[DraftShape]
    sequences: Seq[SequenceView]
    prices: Prices
    clock: VirtualClock
    known: list[int] = field(default_factory=list)  # roots and nodes of each draft, one level ago

    def deeper(self, depth: int, drafts: Seq[DraftTree]) -> list[BoolArray]:
        grow = self.inner.deeper(depth, drafts)
        rows = behind = 0
        known = self.known or [0] * len(drafts)
        for i, (nodes, shape) in enumerate(zip(grow, self.shapes, strict=True)):
            count = int(nodes[known[i] :].sum())
            if count and depth < shape.depth and len(drafts[i]) < shape.nodes:
                rows += count
                sequence = self.sequences[i]
                behind += sequence.undrafted if isinstance(sequence, Sequence) else 0
        self.known = [len(nodes) for nodes in grow]
        if rows:
            self.clock.spend(self.prices.level(depth, rows, behind))
        return grow


class PricedDrafter:
    """A drafter whose levels take the time of a cost model.

    One that drafts in one call pays for the levels of what came out, and for one where nothing came.
    """

    def __init__(self, inner: Drafter, prices: Prices, clock: VirtualClock) -> None:
        self.inner, self.prices, self.clock = inner, prices, clock

    @property
    def traits(self) -> DrafterTraits:
        return self.inner.traits

    def bind(self, target: TargetInfo, checkpoint: CheckpointReader | None = None, mesh: Mesh = ALONE) -> None:
        self.inner.bind(target, checkpoint, mesh)

    def reserve(self, blocks: int, block_tokens: int) -> None:
        self.inner.reserve(blocks, block_tokens)

    def prefill(self, sequences: Seq[SequenceView], features: Seq[FeatureRows] | None = None) -> None:
        self.inner.prefill(sequences, features)

    def commit(
        self, sequences: Seq[SequenceView], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        self.inner.commit(sequences, accepted, features)

    def release(self, sequence: SequenceView) -> None:
        self.inner.release(sequence)

    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        if self.traits.stop == "incremental":
            spending = _Spending(controller, plan.shapes, sequences, self.prices, self.clock)
            return self.inner.propose(sequences, plan, spending, base)
        drafts = self.inner.propose(sequences, plan, controller, base)
        self._charge(sequences, plan, drafts)
        return drafts

    def _charge(self, sequences: Seq[SequenceView], plan: StepPlan, drafts: Seq[DraftTree]) -> None:
        asked = [i for i, shape in enumerate(plan.shapes) if shape.nodes]
        levels = np.bincount(np.concatenate([depths(drafts[i].parents) for i in asked]), minlength=2).tolist()
        for depth in range(max(len(levels) - 1, 1)):
            rows = len(asked) if depth == 0 else levels[depth]
            self.clock.spend(self.prices.level(depth, rows, 0))
