"""The engine: one step at a time, schedule -> plan -> draft -> verify -> commit -> emit.

Invariant (rule R1): a request's tokens are a function of its prompt, parameters and seed alone, whatever is drafted and
whoever shares the batch. With policy `off` every draft is empty, and the same step is plain decoding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

import numpy as np
from torch import Tensor

from draftwing.core import Emission, EngineCounters, IntArray, PolicyStatus, Request, StepRecord
from draftwing.decisions.status import status_of
from draftwing.drafters.base import Accepted, Drafter
from draftwing.engine import commit
from draftwing.engine.admission import Admission
from draftwing.engine.commit import Outcome
from draftwing.engine.drafting import Drafting, Drafts
from draftwing.engine.features import FeatureTap
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.logprobs import logprobs
from draftwing.engine.planning import note_drafted, plan_inputs, step_result
from draftwing.engine.rejection import choose_by_rejection
from draftwing.engine.rows import Layout, lay_out
from draftwing.engine.runner import Runner
from draftwing.engine.sampling import Choice, choose
from draftwing.engine.scheduler import Limits, Schedule, Scheduler
from draftwing.engine.sequence import Sequence
from draftwing.engine.telemetry import StepFacts, Telemetry, observe
from draftwing.engine.verify import accepted_rows
from draftwing.errors import RequestError
from draftwing.policy.base import Policy


class Engine:
    """Single-threaded: one owner calls `add`, `cancel` and `step`. clock: seconds, that of the times reported.

    paused: why an operator holds speculation off, "" where it runs. May be set between two steps.
    """

    def __init__(
        self,
        *,
        runner: Runner,
        pool: BlockPool,
        limits: Limits,
        drafter: Drafter,
        policy: Policy,
        admission: Admission,
        rejection: bool = False,
        tap: FeatureTap | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.runner = runner
        self.pool = pool
        self.telemetry = Telemetry()
        self.scheduler = Scheduler(pool, limits, self.telemetry.counters)
        self.drafting = Drafting(drafter, runner.vocab_size)
        self.policy = policy
        self.admission = admission
        self.rejection = rejection
        self.tap = tap
        self.clock = clock
        self.paused = ""
        self._ended: list[str] = []  # requests that left since the policy was last told
        self._sequences: dict[str, Sequence] = {}
        self._arrivals = 0

    @property
    def busy(self) -> bool:
        return bool(self._sequences)

    @property
    def counters(self) -> EngineCounters:
        return self.telemetry.counters

    @property
    def records(self) -> deque[StepRecord]:
        return self.telemetry.records

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self.scheduler.waiting)

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self.scheduler.running)

    @property
    def kv_use(self) -> float:
        """Share of the cache's blocks in use."""
        return 1 - self.pool.free / self.pool.blocks

    def policy_status(self) -> PolicyStatus:
        """What the policy does now and why, its last step in words."""
        return status_of(self.policy, self.records[-1] if self.records else None, self.paused)

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError (it can't be served) or OverloadedError (the queue is full)."""
        if request.id in self._sequences:
            raise RequestError(f"id {request.id!r} is in use; it must be unique among live requests", param="id")
        sequence = self.admission.admit(request, self._arrivals, waiting=len(self.scheduler.waiting))
        self._arrivals += 1
        self._sequences[request.id] = sequence
        self.scheduler.add(sequence)
        self.counters.prompt_tokens += sequence.prompt_len

    def cancel(self, request_id: str) -> None:
        """Drop a request; its slot and blocks are free before the next step. Unknown ids are over already."""
        if (sequence := self._sequences.get(request_id)) is not None:
            self._forget(sequence, "cancelled")

    def step(self) -> list[Emission]:
        """One step for every running request; what each of them gained. [] when idle."""
        if not self._sequences:
            return []
        marks = [self.clock()]
        schedule = self.scheduler.schedule()
        for sequence in self.scheduler.preempted:
            self.drafting.release(sequence)
        inputs = plan_inputs(schedule, self.scheduler, paused=bool(self.paused))
        plan = self.policy.decide(inputs)
        self.scheduler.hold_drafts(schedule, plan)
        marks.append(self.clock())
        drafts = self.drafting.propose(schedule.decoding, plan, self.policy.controller(inputs, plan))
        drafted_at = self.clock()
        drafts.cut(self.policy.cut(inputs, plan, drafts.made))
        layout = lay_out(schedule, drafts.trees, self.pool)
        marks.append(self.clock())
        logits = self.runner.forward(layout.batch)
        marks.append(self.clock())
        choice = choose(logits, layout.sample_rows())
        if self.rejection:
            choice = choose_by_rejection(choice, logits, layout, drafts.trees)
        marks.append(self.clock())
        paths = layout.split(accepted_rows(layout.tokens, layout.parents, choice.tokens))
        outcomes = self._commit(layout, paths, choice)
        accepted = self._tell_drafter(schedule, layout, drafts, paths, outcomes, choice)
        emissions = self._emit(layout, paths, outcomes, logits)
        marks.append(self.clock())
        result = step_result(
            drafts,
            [verified.nodes for verified in accepted],
            [verified.count for verified in accepted],
            rows=layout.count,
            draft_s=drafted_at - marks[1],
            step_s=marks[-1] - marks[0],
            ended=tuple(self._ended),
        )
        self._ended.clear()
        self.policy.observe(inputs, plan, result)
        self.telemetry.record(
            StepFacts(
                marks=marks,
                plan=plan,
                rows=layout.count,
                prefill_rows=inputs.prefill_rows,
                context=layout.context,
                waiting=len(self.scheduler.waiting),
                drafted=[len(draft) for draft in drafts.trees],
                committed=sum(len(o.committed) for o in outcomes),
                bad_drafts=drafts.refused,
                preempted=len(self.scheduler.preempted),
                parents=layout.parents,
                depths=layout.depths,
                accepted=np.concatenate([p[1 : 1 + o.accepted] for p, o in zip(paths, outcomes, strict=True)]),
            )
        )
        return emissions

    def check(self) -> None:
        """Invariants of the cache's bookkeeping. Raises RuntimeError."""
        self.pool.check(s.table for s in self._sequences.values())
        for sequence in self._sequences.values():
            self.pool.check_writable(sequence.table[sequence.kv_len // self.pool.block_tokens :])

    def _commit(self, layout: Layout, paths: list[IntArray], choice: Choice) -> list[Outcome]:
        """Tokens on the accepted paths become output, and their rows committed cache in path order."""
        outcomes = []
        sources, targets = [], []
        for sequence, rows, path, start in zip(
            layout.sequences, layout.batch, paths, layout.starts.tolist(), strict=True
        ):
            tokens, finite = choice.tokens[path].tolist(), choice.finite[path].tolist()
            outcomes.append(commit.append(sequence, tokens, finite, self.admission.eos_token_ids))
            root_at = rows.kv_len + len(rows.tokens) - rows.wanted
            sequence.kv_len = root_at + len(path)
            source, target = rows.slots[root_at + path - start], rows.slots[root_at : sequence.kv_len]
            moved = source != target
            sources.append(source[moved])
            targets.append(target[moved])
        if any(len(source) for source in sources):
            self.runner.move(np.concatenate(sources), np.concatenate(targets))
        for sequence, rows, outcome in zip(layout.sequences, layout.batch, outcomes, strict=True):
            if outcome.error is None:
                self.scheduler.keep(sequence, rows.kv_len)
            else:
                self.pool.forget(sequence.table)  # whatever spoiled its logits may lie there
        return outcomes

    def _tell_drafter(
        self,
        schedule: Schedule,
        layout: Layout,
        drafts: Drafts,
        paths: list[IntArray],
        outcomes: list[Outcome],
        choice: Choice,
    ) -> list[Accepted]:
        accepted = []
        for i, sequence in enumerate(schedule.decoding):
            start, draft = int(layout.starts[i]), layout.batch[i].wanted - 1
            choices = choice.tokens[start : start + draft + 1]
            nodes = paths[i][1:] - start - 1
            accepted.append(drafts.in_drafters_numbers(i, nodes, len(outcomes[i].committed), choices))
            depth = int(layout.depths[start : start + draft + 1].max())
            observe(sequence.summary, drafted=draft, accepted=outcomes[i].accepted, depth=depth)
        note_drafted(schedule, drafts, [verified.count for verified in accepted])
        features = None if self.tap is None else self.tap.rows(layout, paths)
        decoding = len(accepted)
        self.drafting.prefilled([sequence for sequence, _ in schedule.prefilling], features and features[decoding:])
        self.drafting.committed(schedule.decoding, accepted, features and features[:decoding])
        return accepted

    def _emit(self, layout: Layout, paths: list[IntArray], outcomes: list[Outcome], logits: Tensor) -> list[Emission]:
        """One event per request that gained tokens or ended; ended ones leave the engine."""
        emissions = []
        for sequence, path, outcome in zip(layout.sequences, paths, outcomes, strict=True):
            if not outcome.committed and outcome.finish_reason is None:
                continue
            entries = None
            if sequence.params.logprobs is not None:
                entries = logprobs(logits, path[: len(outcome.committed)], outcome.committed, sequence.params.logprobs)
            emissions.append(commit.emission(sequence, outcome, entries))
            if outcome.finish_reason is not None:
                self._forget(sequence, outcome.finish_reason)
        return emissions

    def _forget(self, sequence: Sequence, reason: str) -> None:
        del self._sequences[sequence.id]
        self.scheduler.remove(sequence)
        self.drafting.release(sequence)
        self._ended.append(sequence.id)
        self.counters.finished[reason] = self.counters.finished.get(reason, 0) + 1
        if not self._sequences and self.pool.free < self.pool.blocks:
            raise RuntimeError(f"idle, but {self.pool.blocks - self.pool.free} cache blocks are still held")
