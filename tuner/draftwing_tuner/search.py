"""An Optuna study per batch and context: which tree to draft, judged by replay of the trace on the measured costs.

A trial is a shape: depth, children of the root, children one level below, node budget. Its value is the log of its rate
over plain decoding's, for traffic that stays at the bucket's batch. The first trials are plain decoding, the default,
the best chain of the closed form, and what the profile in use says; depth 0 is always among them, so the best is never
worse than plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from draftwing.core import NO_DRAFT, DraftShape
from draftwing.drafters.base import DrafterTraits
from draftwing.drafters.tree import full_size
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.scheduler import Limits
from draftwing.policy.base import Policy
from draftwing.policy.closed_form import best_length
from draftwing.policy.cost import CostModel
from draftwing.policy.modes import FixedPolicy, OffPolicy
from draftwing_tuner.collecting import DEPTH
from draftwing_tuner.replay import ReplayDrafter
from draftwing_tuner.simulate import Simulation, asks
from draftwing_tuner.trace import Trace

JOURNAL = "study.log"
TRIALS = 24
DEFAULT = DraftShape((1,) * 4, 4)
CHAINS = tuple(DraftShape((1,) * k, k) for k in (1, 2, 3, 4, 6, 8))
BLOCK = 32
WIDEST, SECOND = 3, 2  # children of the root, and of its children: what traces hold


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
class Found:
    """The best shape of a bucket. trials: (number, log-ratio to plain, shape), in order."""

    bucket: Bucket
    shape: DraftShape
    rate: Rate
    plain: Rate
    trials: tuple[tuple[int, float, DraftShape], ...]

    @property
    def margin(self) -> float:
        return self.rate.per_ms / self.plain.per_ms


class Replay:
    """Rates of shapes and policies over one trace and cost model; each is computed once."""

    def __init__(self, trace: Trace, drafter: str, costs: CostModel) -> None:
        self.trace, self.drafter, self.costs = trace, drafter, costs
        self._known: dict[tuple[Bucket, DraftShape], Rate] = {}

    def rate(self, bucket: Bucket, shape: DraftShape) -> Rate:
        if (bucket, shape) not in self._known:
            policy: Policy = FixedPolicy(self.drafter, shape) if shape.nodes else OffPolicy()
            self._known[bucket, shape] = self.rate_of(bucket, policy)
        return self._known[bucket, shape]

    def rate_of(self, bucket: Bucket, policy: Policy) -> Rate:
        """Over all answers, each at least once. Only steps at the bucket's batch count, and none that prefills."""
        answers = [replace(r, prompt=None, prompt_len=bucket.context) for r in self.trace.requests if len(r.output) > 1]
        longest = max(len(answer.output) for answer in answers)
        tokens = bucket.batch * (bucket.context + longest + policy.largest.nodes + 2 * BLOCK)
        simulation = Simulation(
            self.trace,
            costs=self.costs,
            policy=policy,
            drafter=ReplayDrafter(self.trace, self.drafter),
            pool=BlockPool(-(-tokens // BLOCK) + bucket.batch, BLOCK, prefix=False),
            limits=Limits(bucket.batch, 2**20, 2**20, 2**20),
        )
        laps = -(-3 * bucket.batch // len(answers)) if len(answers) < 3 * bucket.batch else 1
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
            raise ValueError(f"the answers are too short to keep {bucket.batch} sequences busy")
        return Rate(committed / spent / 1e3, committed / steps / bucket.batch)


def search(
    replay: Replay,
    buckets: Iterable[Bucket],
    traits: DrafterTraits,
    folder: Path,
    *,
    stored: Callable[[Bucket], DraftShape | None] = lambda bucket: None,
    trials: int = TRIALS,
    tag: str = "",
    show: Callable[[Bucket, int], None] = lambda bucket, done: None,
) -> list[Found]:
    """Goes on where an earlier run stopped: trials are kept in a journal in the folder.

    tag: what tells studies of these costs and this text from others in the journal.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    found = []
    for bucket in buckets:
        study = optuna.create_study(
            storage=storage,
            study_name=f"{bucket} {tag}".strip(),
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=bucket.batch),
            load_if_exists=True,
        )
        if not study.trials:
            first = [NO_DRAFT, DEFAULT, _closed_form(replay, bucket), stored(bucket)]
            for shape in dict.fromkeys(_within(shape, traits) for shape in first if shape is not None):
                study.enqueue_trial(_parameters(shape))
        while (done := _complete(study)) < trials:
            show(bucket, done)
            study.optimize(lambda trial: _value(trial, replay, bucket, traits), n_trials=1)  # noqa: B023 (at once)
        found.append(_best(study, replay, bucket))
    return _shared(found, replay, traits)


def _complete(study: optuna.Study) -> int:
    return sum(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.trials)


def _value(trial: optuna.Trial, replay: Replay, bucket: Bucket, traits: DrafterTraits) -> float:
    depth = trial.suggest_int("depth", 0, min(DEPTH, traits.max_depth))
    wide = trial.suggest_int("root", 1, WIDEST if traits.trees else 1)
    second = trial.suggest_int("second", 1, SECOND if traits.trees else 1)
    budget = trial.suggest_float("budget", 0.25, 1.0)  # of the full tree's nodes
    shape = _shape(depth, wide, second, budget)
    trial.set_user_attr("branching", list(shape.branching))
    trial.set_user_attr("nodes", shape.nodes)
    return log(replay.rate(bucket, shape).per_ms / replay.rate(bucket, NO_DRAFT).per_ms)


def _shape(depth: int, wide: int, second: int, budget: float) -> DraftShape:
    branching = ((wide, second) + (1,) * DEPTH)[:depth]
    full = full_size(branching)
    return DraftShape(branching, max(depth, round(budget * full))) if depth else NO_DRAFT


def _parameters(shape: DraftShape) -> dict[str, int | float]:
    """Those that give this shape, as far as any do."""
    wide, second, *_ = (*shape.branching, 1, 1)
    full = full_size(shape.branching)
    budget = max(shape.nodes / full, 0.25) if full else 1.0
    return {"depth": shape.depth, "root": min(wide, WIDEST), "second": min(second, SECOND), "budget": min(budget, 1.0)}


def _within(shape: DraftShape, traits: DrafterTraits) -> DraftShape:
    return shape.cut(min(DEPTH, traits.max_depth), shape.nodes)


def _closed_form(replay: Replay, bucket: Bucket) -> DraftShape:
    """The best chain, were every token accepted with one probability: that of a single drafted one."""
    alpha = min(max(replay.rate(bucket, DraftShape((1,), 1)).tokens - 1, 0.0), 1.0)
    context = bucket.batch * bucket.context
    best = best_length(alpha, replay.costs, batch=bucket.batch, context=context, most=DEPTH)
    return DraftShape((1,) * best.k, best.k)


def _best(study: optuna.Study, replay: Replay, bucket: Bucket) -> Found:
    done = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    tried = tuple(
        (
            trial.number,
            float(trial.value or 0.0),
            DraftShape(tuple(trial.user_attrs["branching"]), trial.user_attrs["nodes"]),
        )
        for trial in done
    )
    # Of shapes as good as each other, the one with the fewest nodes.
    _, _, shape = max(tried, key=lambda entry: (round(entry[1], 6), -entry[2].nodes))
    return Found(bucket, shape, replay.rate(bucket, shape), replay.rate(bucket, NO_DRAFT), tried)


def _shared(found: Seq[Found], replay: Replay, traits: DrafterTraits) -> list[Found]:
    """What was best in one bucket is tried in the others too, and so is every chain: no single one beats the table."""
    shapes = sorted(candidates(found, traits.max_depth), key=lambda shape: shape.nodes)

    def better(one: Found) -> Found:
        shape = max(shapes, key=lambda s: (round(log(replay.rate(one.bucket, s).per_ms), 6), -s.nodes))
        return replace(one, shape=shape, rate=replay.rate(one.bucket, shape))

    return [better(one) for one in found]


def candidates(found: Seq[Found], most_depth: int) -> list[DraftShape]:
    """Every bucket's best shape, and every chain."""
    return list(dict.fromkeys([*(one.shape for one in found), *(s for s in CHAINS if s.depth <= most_depth)]))


def best_fixed(replay: Replay, found: Seq[Found], most_depth: int) -> tuple[DraftShape, float]:
    """The one shape that is best over all buckets, and its mean ratio to plain."""

    def mean(shape: DraftShape) -> float:
        ratios = [log(replay.rate(f.bucket, shape).per_ms / f.plain.per_ms) for f in found]
        return exp(sum(ratios) / len(ratios))

    best = max(candidates(found, most_depth), key=mean)
    return best, mean(best)
