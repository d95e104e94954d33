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
from optuna.trial import TrialState

from draftwing.core import NO_DRAFT, DraftShape
from draftwing.drafters.base import DrafterTraits
from draftwing.drafters.tree import full_size
from draftwing.policy.closed_form import best_length
from draftwing_tuner.collecting import DEPTH
from draftwing_tuner.rates import Bucket, Rate, Replay

JOURNAL = "study.log"
TRIALS = 24
TOGETHER = 4  # trials of a study that are asked for before any of them is told
DEFAULT = DraftShape((1,) * 4, 4)
CHAINS = tuple(DraftShape((1,) * k, k) for k in (1, 2, 3, 4, 6, 8))
WIDEST, SECOND = 3, 2  # children of the root, and of its children: what traces hold


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


def search(
    replay: Replay,
    buckets: Iterable[Bucket],
    traits: DrafterTraits,
    folder: Path,
    *,
    stored: Callable[[Bucket], DraftShape | None] = lambda bucket: None,
    trials: int = TRIALS,
    tag: str = "",
    show: Callable[[int], None] = lambda done: None,
) -> list[Found]:
    """Goes on where an earlier run stopped: trials are kept in a journal in the folder.

    Trials are asked for so many at a time, whoever computes them, so that the outcome doesn't depend on it.
    tag: what tells studies of these costs and this text from others in the journal. show: told of trials done.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    studies = {bucket: _study(storage, f"{bucket} {tag}".strip(), bucket) for bucket in buckets}
    replay.learn((bucket, shape) for bucket in studies for shape in (NO_DRAFT, DraftShape((1,), 1)))
    for bucket, study in studies.items():
        _begin(study, [NO_DRAFT, DEFAULT, _closed_form(replay, bucket), stored(bucket)], traits)
    while any(asked := [_ask(study, bucket, traits, trials) for bucket, study in studies.items()]):
        show(sum(_complete(study) for study in studies.values()))
        replay.learn((bucket, shape) for each in asked for bucket, _, shape in each)
        for study, each in zip(studies.values(), asked, strict=True):
            for bucket, trial, shape in each:
                study.tell(trial, log(replay.rate(bucket, shape).per_ms / replay.rate(bucket, NO_DRAFT).per_ms))
    return _shared([_best(study, replay, bucket) for bucket, study in studies.items()], replay, traits)


def _study(storage: JournalStorage, name: str, bucket: Bucket) -> optuna.Study:
    return optuna.create_study(
        storage=storage,
        study_name=name,
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=bucket.batch, constant_liar=True),
        load_if_exists=True,
    )


def _begin(study: optuna.Study, first: Seq[DraftShape | None], traits: DrafterTraits) -> None:
    """What is tried before anything else: what is known, or else what a run that was stopped didn't come to."""
    for trial in study.get_trials(states=[TrialState.RUNNING]):
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params)
    if not study.trials:
        for shape in dict.fromkeys(_within(shape, traits) for shape in first if shape is not None):
            study.enqueue_trial(_parameters(shape))


def _complete(study: optuna.Study) -> int:
    return len(study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]))


def _ask(
    study: optuna.Study, bucket: Bucket, traits: DrafterTraits, trials: int
) -> list[tuple[Bucket, optuna.Trial, DraftShape]]:
    """As many as are computed side by side, and no more than are left."""
    asked = []
    for _ in range(min(TOGETHER, trials - _complete(study))):
        trial = study.ask()
        depth = trial.suggest_int("depth", 0, min(DEPTH, traits.max_depth))
        wide = trial.suggest_int("root", 1, WIDEST if traits.trees else 1)
        second = trial.suggest_int("second", 1, SECOND if traits.trees else 1)
        budget = trial.suggest_float("budget", 0.25, 1.0)  # of the full tree's nodes
        shape = _shape(depth, wide, second, budget)
        trial.set_user_attr("branching", list(shape.branching))
        trial.set_user_attr("nodes", shape.nodes)
        asked.append((bucket, trial, shape))
    return asked


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
    best = best_length(alpha, replay.ground.costs, batch=bucket.batch, context=context, most=DEPTH)
    return DraftShape((1,) * best.k, best.k)


def _best(study: optuna.Study, replay: Replay, bucket: Bucket) -> Found:
    done = study.get_trials(states=[TrialState.COMPLETE])
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
    replay.learn((one.bucket, shape) for one in found for shape in shapes)

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
