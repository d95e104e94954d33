"""Times the parts of a step on a real engine: one forward and its sampling, one call of the drafter, the rest.

Sequences with a long text in the cache stand ready. A verify runs their next rows and commits nothing, so any batch,
row count and context can follow any other; a shorter context is the beginning of the same rows.

Shapes: N rows of a verify, B sequences, S cached tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
import torch

from draftwing.core import DraftShape, DraftTree, IntArray, Request, SamplingParams, StepPlan
from draftwing.drafters.base import FeatureRows, NullController
from draftwing.drafters.tree import full_size
from draftwing.engine.assemble import TargetFacts, assemble
from draftwing.engine.batch import SequenceRows
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.rows import Layout, lay_out
from draftwing.engine.runner import Runner
from draftwing.engine.sampling import choose
from draftwing.engine.scheduler import Schedule
from draftwing.engine.sequence import Sequence
from draftwing.engine.step import Engine
from draftwing.errors import SetupError
from draftwing.policy.modes import OffPolicy
from draftwing_tuner.grid import Bounds, Cell

Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
CONTEXTS = (32, 256, 1024)  # tokens of each sequence
ROOM = 64  # rows of one sequence in a verify
EXTRA = 128  # cache rows beyond the context: those of a verify, or of tokens to catch up and a draft
STEPS = 6  # of one overhead sample, the first left out
PLAIN = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


class _Instant:
    """A runner that answers at once: what remains of a step is the engine's own."""

    def __init__(self, real: Runner) -> None:
        self.vocab_size = real.vocab_size
        self._logits = torch.zeros(1, real.vocab_size)
        self._logits[0, 1] = 1.0

    def forward(self, sequences: Seq[SequenceRows]) -> torch.Tensor:
        return self._logits.expand(sum(rows.wanted for rows in sequences), -1)

    def move(self, source: IntArray, target: IntArray) -> None:
        pass


class Bench:
    """text: token ids, repeated where a context needs more. clock: seconds. The engine must be idle, and stays so."""

    def __init__(self, engine: Engine, drafter: str, text: Seq[int], clock: Clock) -> None:
        if engine.busy:
            raise ValueError("the engine has requests; the bench needs it idle")
        self.engine, self.drafter, self.clock = engine, drafter, clock
        self.bounds = bounds_of(engine)
        self._draw = np.random.default_rng(0)
        deepest = self.bounds.contexts[-1]
        self.text = (list(text) * (1 + (deepest + 1) // max(len(text), 1)))[: deepest + 1]
        self._bank: list[Sequence] = []

    def sample(self, cell: Cell) -> float:
        """Milliseconds of one run of the cell, by the clock."""
        if not self._bank and cell.part != "overhead":
            self._fill()
        if cell.part == "verify":
            return self._verify(cell)
        if cell.part == "draft":
            return self._draft(cell.batch, cell.depth, cell.width, 1)
        if cell.part == "catch_up":
            return self._draft(1, 1, 1, 1 + cell.rows) - self._draft(1, 1, 1, 1)
        return self._overhead(cell.batch)

    def close(self) -> None:
        """Give the cache back."""
        for sequence in self._bank:
            self.engine.drafting.release(sequence)
            self.engine.pool.release(sequence.table)
        self._bank = []

    def _verify(self, cell: Cell) -> float:
        share, more = divmod(cell.rows, cell.batch)
        sequences = [self._shortened(sequence, cell.context) for sequence in self._bank[: cell.batch]]
        drafts = [self._random_chain(share - 1 + (i < more)) for i in range(cell.batch)]
        layout = lay_out(Schedule(sequences, []), drafts, self.engine.pool)
        begun = self.clock()
        choose(self.engine.runner.forward(layout.batch), layout.sample_rows())
        return (self.clock() - begun) * 1e3

    def _draft(self, batch: int, depth: int, width: int, behind: int) -> float:
        """behind: tokens that the drafter has not run; a step leaves at least one."""
        branching = (width,) + (1,) * (depth - 1)
        plan = StepPlan(self.drafter, (DraftShape(branching, full_size(branching)),) * batch, "measure")
        base = [self._random_chain(behind).tokens.tolist() for _ in range(batch)]
        sequences, drafter = self._bank[:batch], self.engine.drafting.drafter
        begun = self.clock()
        drafter.propose(sequences, plan, NullController(), base)
        return (self.clock() - begun) * 1e3

    def _overhead(self, batch: int) -> float:
        """Schedule, plan, layout, commit and emit of a plain step: the median of a few."""
        engine, taken = self._idle_engine(batch), []
        for i in range(batch):
            prompt = [*self.text[:8], i % engine.runner.vocab_size]
            engine.add(Request(f"overhead-{i}", prompt, replace(PLAIN, max_tokens=STEPS + 1), salt="measure"))
        while engine.busy:
            engine.step()
            record = engine.records[-1]
            if record.sequences == batch and not record.prefill_rows:
                taken.append((record.schedule_s + record.draft_s + record.commit_s) * 1e3)
        return float(np.median(taken[1:] or taken))

    def _idle_engine(self, batch: int) -> Engine:
        """One like the engine, with bookkeeping for a cache and no target."""
        real = self.engine
        size = real.pool.block_tokens
        return assemble(
            _Instant(real.runner),
            TargetFacts(real.admission.context, real.admission.eos_token_ids, real.admission.decoder),
            pool=BlockPool(batch * -(-(16 + STEPS) // size), size, prefix=real.pool.prefix),
            limits=real.scheduler.limits,
            drafter=real.drafting.drafter,
            policy=OffPolicy(),
            clock=self.clock,
        )

    def _random_chain(self, count: int) -> DraftTree:
        if count <= 0:
            return DraftTree.empty()
        return DraftTree.chain(self._draw.integers(0, self.engine.runner.vocab_size, count))

    def _shortened(self, sequence: Sequence, context: int) -> Sequence:
        return replace(sequence, tokens=self.text[: context + 1], kv_len=context, chain=[])

    def _fill(self) -> None:
        """Run the text once, and copy its rows for every other sequence; the drafter sees each of them."""
        context = self.bounds.contexts[-1]
        first: Sequence | None = None
        features: list[FeatureRows] = []
        for i in range(self.bounds.sequences):
            request = Request(f"bench-{i}", self.text[: context + 1], PLAIN, salt=f"bench-{i}")
            sequence = self.engine.admission.admit(request, i, waiting=0)
            if not self.engine.pool.grow(sequence.table, context + EXTRA):
                raise SetupError(f"the cache can't hold {self.bounds.sequences} sequences of {context} tokens")
            self._bank.append(sequence)
            if first is None:
                first, features = sequence, self._prefill(sequence, context)
            else:
                slots = [self.engine.pool.slots(s.table, context) for s in (first, sequence)]
                self.engine.runner.move(*slots)
                sequence.kv_len = context
            self.engine.drafting.prefilled([sequence], features or None)

    def _prefill(self, sequence: Sequence, context: int) -> list[FeatureRows]:
        """Run the sequence up to its root; all its feature rows, if the drafter needs them."""
        chunk, found = self.engine.scheduler.limits.prefill_chunk, []
        while sequence.kv_len < context:
            size = min(chunk, context - sequence.kv_len)
            layout: Layout = lay_out(Schedule([], [(sequence, size)]), [], self.engine.pool)
            self.engine.runner.forward(layout.batch)
            if self.engine.tap is not None:
                found += self.engine.tap.rows(layout, [np.empty(0, dtype=np.int64)])
            sequence.kv_len += size
        if not found:
            return []
        hidden = tuple(torch.cat(parts) for parts in zip(*(rows.hidden for rows in found), strict=True))
        return [FeatureRows(0, hidden)]


def bounds_of(engine: Engine) -> Bounds:
    """The largest batches and contexts that the limits and the cache allow. SetupError where there is no room."""
    limits, pool = engine.scheduler.limits, engine.pool
    longest = engine.admission.context - EXTRA
    contexts = tuple(c for c in CONTEXTS if c <= longest) or (max(longest, 1),)
    while len(contexts) > 1 and pool.blocks // pool.blocks_for(contexts[-1] + EXTRA) < min(8, limits.sequences):
        contexts = contexts[:-1]
    sequences = min(limits.sequences, pool.blocks // pool.blocks_for(contexts[-1] + EXTRA), 256)
    if sequences < 1 or longest < 1:
        raise SetupError(
            f"the cache of {pool.tokens} tokens and the context of {engine.admission.context} leave no room to "
            f"measure one sequence of {contexts[-1] + EXTRA} tokens; raise cache.tokens or limits.context"
        )
    return Bounds(sequences, min(limits.batch_tokens, sequences * ROOM), contexts)
