"""Who runs in a step: decoding sequences first, then prefill chunks, within row and cache limits.

First come first served. When the cache is short the youngest sequence gives its blocks back and is computed again
later, less what is still cached of it; the oldest is never preempted, so it always finishes and nothing starves.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from draftwing.core import EngineCounters, StepPlan
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.prefix_cache import extend_chain
from draftwing.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """sequences: running at once. queue: waiting. batch_tokens: rows of a step. prefill_chunk: rows of a chunk.

    lanes: groups of sequences that decode in turns, one a step, so that a drafter elsewhere drafts for one while
    another is verified (mode *alternate*).
    """

    sequences: int
    queue: int
    batch_tokens: int
    prefill_chunk: int
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Schedule:
    """decoding: one root row each. prefilling: (sequence, rows of its chunk)."""

    decoding: list[Sequence]
    prefilling: list[tuple[Sequence, int]]

    @property
    def rows(self) -> int:
        return len(self.decoding) + sum(chunk for _, chunk in self.prefilling)


class Scheduler:
    """running and waiting are in order of arrival, and every running sequence is older than every waiting one."""

    def __init__(self, pool: BlockPool, limits: Limits, counters: EngineCounters) -> None:
        self.pool = pool
        self.limits = limits
        self.counters = counters
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._turn = 0
        self.preempted: list[Sequence] = []  # since the last schedule began; they hold no blocks

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
        prefilling: list[tuple[Sequence, int]] = []
        budget = self.limits.batch_tokens
        turn = self._next_turn()
        for sequence in self.running:  # the preempted leave from its end, so none that is met here has left
            if sequence.pending == 1 and sequence.lane == turn and budget > 0 and self._hold(sequence, 1):
                decoding.append(sequence)
                budget -= 1
        for sequence in self.running:
            if sequence.pending > 1:
                budget -= self._prefill(sequence, budget, prefilling)
        self._admit(budget, decoding, prefilling)
        held = {id(s) for s in self.running}
        return Schedule(
            [s for s in decoding if id(s) in held], [(s, chunk) for s, chunk in prefilling if id(s) in held]
        )

    def _next_turn(self) -> int:
        """The lane that decodes now: the next one in which a sequence is ready."""
        lanes = {s.lane for s in self.running if s.pending == 1}
        self._turn = min(lanes, key=lambda lane: (lane <= self._turn, lane), default=0)
        return self._turn

    def _admit(self, budget: int, decoding: list[Sequence], prefilling: list[tuple[Sequence, int]]) -> None:
        """Start waiting sequences, in order, as long as all their tokens fit beside those that run."""
        if self.waiting and len(self.running) < self.limits.sequences:
            self._reclaim()
        owed = sum(self._owed(s) for s in self.running) if self.waiting else 0
        while self.waiting and budget > 0 and not self.preempted and len(self.running) < self.limits.sequences:
            sequence = self.waiting[0]
            hits = self._find(sequence)
            if self._twin_runs(sequence, len(hits)):
                break
            if owed + self._owed(sequence) - len(hits) + self.pool.idle(hits) > self.pool.free:
                break
            self.running.append(self.waiting.popleft())
            self._start(sequence, hits)
            if sequence.pending == 1 and self._hold(sequence, 1):
                decoding.append(sequence)
                budget -= 1
            else:
                budget -= self._prefill(sequence, budget, prefilling)
            owed += self._owed(sequence)

    def _start(self, sequence: Sequence, hits: list[int]) -> None:
        self.pool.share(sequence.table, hits)
        sequence.kv_len = len(hits) * self.pool.block_tokens
        sizes = [0] * self.limits.lanes
        for other in self.running[:-1]:
            sizes[other.lane] += 1
        sequence.lane = sizes.index(min(sizes))
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(sequence.kv_len, sequence.prompt_len)
            self.counters.prefix_queries += sequence.prompt_len
            self.counters.prefix_hits += sequence.cached_tokens

    def _owed(self, sequence: Sequence) -> int:
        """Blocks that it needs beyond those it holds to have all its tokens run and one more."""
        return max(self.pool.blocks_for(len(sequence.tokens) + 1) - len(sequence.table), 0)

    def _find(self, sequence: Sequence) -> list[int]:
        """Cached blocks with the sequence's first tokens; the last token is run in any case, for its logits."""
        if not self.pool.prefix:
            return []
        blocks = (len(sequence.tokens) - 1) // self.pool.block_tokens
        chain = extend_chain(sequence.chain, sequence.salt, sequence.tokens, self.pool.block_tokens, blocks)
        return self.pool.find(chain[:blocks])

    def _twin_runs(self, sequence: Sequence, block: int) -> bool:
        """Whether the first block that isn't cached is about to be computed by a sequence that runs.

        Waiting for it costs less than computing the same again; the choices of one prompt come like this.
        """
        return any(
            block < len(s.chain)
            and block < len(sequence.chain)
            and s.chain[block] == sequence.chain[block]
            and s.kv_len < (block + 1) * self.pool.block_tokens
            for s in self.running
        )

    def keep(self, sequence: Sequence, since: int) -> None:
        """Its rows from `since` on are committed: other sequences may find the blocks that became full."""
        size = self.pool.block_tokens
        filled = range(since // size, min(sequence.kv_len, len(sequence.tokens)) // size)
        if filled and self.pool.prefix:
            chain = extend_chain(sequence.chain, sequence.salt, sequence.tokens, size, filled.stop)
            for index in filled:
                self.pool.keep(sequence.table[index], chain[index])

    def _prefill(self, sequence: Sequence, budget: int, prefilling: list[tuple[Sequence, int]]) -> int:
        chunk = min(sequence.pending, budget, self.limits.prefill_chunk)
        if chunk > 0 and self._hold(sequence, chunk):
            prefilling.append((sequence, chunk))
            return chunk
        return 0

    def _hold(self, sequence: Sequence, rows: int) -> bool:
        """Hold blocks for the next rows, preempting younger sequences if need be; False: this one was preempted."""
        while not self.pool.grow(sequence.table, sequence.kv_len + rows):
            if self._reclaim():
                continue
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return False
        return True

    def _reclaim(self) -> bool:
        """Take back the blocks of past drafts; whether there were any."""
        free = self.pool.free
        for sequence in self.running:
            if sequence.pending == 1:
                self.pool.shrink(sequence.table, len(sequence.tokens))
        return self.pool.free > free

    def _preempt(self, youngest: Sequence) -> None:
        self.running.pop()
        self.pool.release(youngest.table)
        youngest.kv_len = youngest.undrafted = 0
        self.waiting.appendleft(youngest)
        self.preempted.append(youngest)

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
