"""Who runs in a step: decoding sequences first, then prefill chunks, within row and cache limits.

First come first served. When the cache is short the youngest sequence gives its blocks back and is computed again
later; the oldest is never preempted, so it always finishes and nothing starves.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from draftwing.core import StepPlan
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """sequences: running at once. queue: waiting. batch_tokens: rows of a step. prefill_chunk: rows of a chunk."""

    sequences: int
    queue: int
    batch_tokens: int
    prefill_chunk: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """decoding: one root row each. prefilling: (sequence, rows of its chunk)."""

    decoding: list[Sequence]
    prefilling: list[tuple[Sequence, int]]

    @property
    def rows(self) -> int:
        return len(self.decoding) + sum(chunk for _, chunk in self.prefilling)


class Scheduler:
    def __init__(self, pool: BlockPool, limits: Limits) -> None:
        self.pool = pool
        self.limits = limits
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preempted: list[Sequence] = []  # since the last schedule began; their cached rows are gone

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a finished or cancelled sequence; its blocks are free at once."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.pool.release(sequence.table)

    def schedule(self) -> Schedule:
        """Choose this step's rows and hold cache blocks for all of them."""
        self.preempted.clear()
        decoding: list[Sequence] = []
        budget = self.limits.batch_tokens
        for sequence in list(self.running):  # oldest first: arrival order is kept
            if sequence.pending == 1 and budget > 0 and sequence in self.running and self._hold(sequence, 1):
                decoding.append(sequence)
                budget -= 1
        prefilling: list[tuple[Sequence, int]] = []
        for sequence in list(self.running):
            if sequence.pending > 1 and sequence in self.running:
                budget -= self._prefill(sequence, budget, prefilling)
        while self.waiting and budget > 0 and len(self.running) < self.limits.sequences:
            sequence = self.waiting[0]
            if self.pool.blocks_for(len(sequence.tokens) + 1) > self.pool.free:
                break
            self.running.append(self.waiting.popleft())
            if sequence.pending == 1 and self._hold(sequence, 1):
                decoding.append(sequence)
                budget -= 1
            else:
                budget -= self._prefill(sequence, budget, prefilling)
        held = {id(s) for s in self.running}
        return Schedule(
            [s for s in decoding if id(s) in held], [(s, chunk) for s, chunk in prefilling if id(s) in held]
        )

    def _prefill(self, sequence: Sequence, budget: int, prefilling: list[tuple[Sequence, int]]) -> int:
        chunk = min(sequence.pending, budget, self.limits.prefill_chunk)
        if chunk > 0 and self._hold(sequence, chunk):
            prefilling.append((sequence, chunk))
            return chunk
        return 0

    def _hold(self, sequence: Sequence, rows: int) -> bool:
        """Hold blocks for the next rows, preempting younger sequences if need be; False: this one was preempted."""
        while not self.pool.grow(sequence.table, sequence.kv_len + rows):
            youngest = max(self.running, key=lambda s: s.arrival)
            self._preempt(youngest)
            if youngest is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.table)
        sequence.kv_len = 0
        at = sum(1 for s in self.waiting if s.arrival < sequence.arrival)
        self.waiting.insert(at, sequence)
        self.preempted.append(sequence)

    def hold_drafts(self, schedule: Schedule, plan: StepPlan) -> None:
        """Hold blocks for all draft rows a plan allows, so that a drafter with a cache may write there too."""
        for sequence, shape in zip(schedule.decoding, plan.shapes, strict=True):
            if not self.pool.grow(sequence.table, sequence.kv_len + 1 + shape.nodes):
                raise RuntimeError(f"the plan gives {sequence.id} {shape.nodes} nodes, more than its draft room")

    def draft_room(self, schedule: Schedule) -> list[int]:
        """Most draft nodes of each decoding sequence, within the free blocks and rows that are left."""
        free = self.pool.free
        rows = self.limits.batch_tokens - schedule.rows
        share = rows // max(len(schedule.decoding), 1)
        room: list[int] = []
        for sequence in schedule.decoding:
            spare = len(sequence.table) * self.pool.block_tokens - sequence.kv_len - 1
            extra = free // max(len(schedule.decoding) - len(room), 1)
            most = min(spare + extra * self.pool.block_tokens, share)
            free -= self.pool.blocks_for(max(most - spare, 0))
            room.append(max(most, 0))
        return room
