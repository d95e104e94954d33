"""`draftwing tune`: measure, collect, learn, validate, publish, within a budget; every part goes on after a stop."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any

from draftwing.core import DraftShape, SamplingParams
from draftwing.errors import ConfigError, DraftwingError
from draftwing.policy.artifact import Artifact, CostRow, ScheduleRow, current, curves_of_rows, read_artifact
from draftwing.policy.base import Policy
from draftwing.policy.cost import CostModel
from draftwing.policy.modes import FixedPolicy, OffPolicy, parse_mode
from draftwing.policy.table import TablePolicy
from draftwing_tuner.bench import bounds_of
from draftwing_tuner.collecting import collect_all
from draftwing_tuner.commands import NO_DRAFTER
from draftwing_tuner.fit import FitError, cost_rows, fit_error, fit_terms
from draftwing_tuner.history import best_shapes, shape_text, study_rows
from draftwing_tuner.learning import Learned, buckets_of, stored_shapes
from draftwing_tuner.measuring import measure_costs
from draftwing_tuner.mixed import ADAPTIVE, PLAIN, TABLE, Mixed, compare, contenders, with_table
from draftwing_tuner.priors import fit_priors, labels_of
from draftwing_tuner.publish import publish
from draftwing_tuner.rates import Ground, Replay
from draftwing_tuner.search import best_fixed, search
from draftwing_tuner.session import Session
from draftwing_tuner.show import bar
from draftwing_tuner.tasks import Spread, ray_tasks
from draftwing_tuner.trace import Trace
from draftwing_tuner.validate import Level, better_mode, validate, withdrawn

HELD_OUT = 3  # one prompt in so many validates, and teaches nothing
MEASURE, COLLECT, HELD, VALIDATE = 0.5, 0.6, 0.65, 0.95  # of the budget: by when each part should end
MOST_ROUNDS = 12
TAUGHT_TRACE, HELD_TRACE = "trace", "held-out"


@dataclass(frozen=True, slots=True)
class Tuned:
    """All that a run found, for the table, the report and the JSON document.

    trace: what was learned from. held: the held-out text, on which `mixed` was replayed. mode: the one to serve in.
    """

    costs: tuple[CostRow, ...]
    error: FitError | None
    learned: Learned
    trace: Trace
    held: Trace
    mixed: tuple[Mixed, ...]
    levels: tuple[Level, ...]
    schedule: tuple[ScheduleRow, ...]
    mode: str
    uri: str
    digest: str
    took_s: float


def tune(
    session: Session,
    prompts: Seq[Seq[int]],
    params: SamplingParams,
    uri: str,
    *,
    budget_s: float,
    trials: int,
    tasks: Callable[[], AbstractContextManager[Spread]] = ray_tasks,
) -> Tuned:
    """tasks: who computes replays.

    ConfigError where there is no drafter to tune, or too few prompts to hold some back.
    """
    begun = monotonic()

    def left(share: float) -> float:
        return begun + budget_s * share - monotonic()

    if not session.config.drafter_name:
        raise ConfigError(NO_DRAFTER)
    taught, held = _parted(prompts)
    measured = measure_costs(session, [token for prompt in taught for token in prompt], left(MEASURE))
    costs, error = cost_rows(measured), fit_error(measured)
    trace = collect_answers(session, taught, params, left(COLLECT))
    unseen = collect_answers(session, held, params, left(HELD), HELD_TRACE)
    with tasks() as spread:
        replay, learned = _learn(session, costs, trace, uri, trials, spread)
        ground = replace(replay.ground, trace=unseen)
        mixed = _mixed(session, ground, learned, spread)
        single, _ = best_fixed(replay, learned.found, session.engine.drafting.drafter.traits.max_depth)
    levels = _validate(session, held, single, learned, params, until=begun + budget_s * VALIDATE)
    schedule = withdrawn(learned.schedule, levels, TABLE, session.clock)
    if schedule != list(learned.schedule):
        mixed = with_table(mixed, ground, schedule)
    mode = better_mode(mixed, levels, session.clock)
    about = {
        "clock": session.clock,
        "model": session.config.model.served_name,
        "answers": len(trace.requests),
        "mode": mode,
        "replayed": [asdict(setting) for setting in mixed],
        "validated": [{"concurrency": level.concurrency, **asdict(s)} for level in levels for s in level.standings],
    }
    return Tuned(
        costs=costs,
        error=error,
        learned=learned,
        trace=trace,
        held=unseen,
        mixed=tuple(mixed),
        levels=tuple(levels),
        schedule=tuple(schedule),
        mode=mode,
        uri=uri,
        digest=_published(session, uri, costs, learned, schedule, about),
        took_s=monotonic() - begun,
    )


def _parted(prompts: Seq[Seq[int]]) -> tuple[list[Seq[int]], list[Seq[int]]]:
    """Those to learn from, and those held out."""
    if len(prompts) < HELD_OUT:
        raise ConfigError(f"{len(prompts)} prompts are too few to hold some back; give at least {HELD_OUT}")
    held = list(prompts[HELD_OUT - 1 :: HELD_OUT])
    return [prompt for i, prompt in enumerate(prompts) if i % HELD_OUT != HELD_OUT - 1], held


def _published(
    session: Session,
    uri: str,
    costs: Seq[CostRow],
    learned: Learned,
    schedule: Seq[ScheduleRow],
    about: Mapping[str, Any],
) -> str:
    return publish(
        uri,
        session.key,
        costs=costs,
        cost_fit=fit_terms(learned.costs),
        acceptance=learned.acceptance,
        schedule=schedule,
        study=study_rows(learned.found),
        block=session.block,
        about=about,
    )


def collect_answers(
    session: Session, prompts: Seq[Seq[int]], params: SamplingParams, seconds: float, name: str = TAUGHT_TRACE
) -> Trace:
    """As many parts as begin within the time, at least one, in the folder of this name.

    ConfigError without a drafter.
    """
    if not session.config.drafter_name:
        raise ConfigError(NO_DRAFTER)
    until = monotonic() + seconds
    with bar("collecting") as update:

        def keep_going(done: int) -> bool:
            update(done, len(prompts), "answers")
            return monotonic() < until

        return collect_all(
            session.engine,
            session.config.drafter_name,
            prompts,
            params,
            session.out / name,
            {"model": session.key["model_digest"], "drafter": session.key["drafter"]},
            keep_going=keep_going,
        )


def _learn(
    session: Session, costs: Seq[CostRow], trace: Trace, uri: str, trials: int, spread: Spread
) -> tuple[Replay, Learned]:
    drafter, traits = session.config.drafter_name, session.engine.drafting.drafter.traits
    model = CostModel.fit(
        curves_of_rows(tuple(costs), name="measured", how="", block=session.block), block=session.block
    )
    replay = Replay(Ground(trace, drafter, model, traits.stop), spread)
    buckets = buckets_of(bounds_of(session.engine))
    with bar("searching") as update:
        found = search(
            replay,
            buckets,
            traits,
            session.out,
            stored=stored_shapes(_in_use(session, uri)),
            trials=trials,
            tag=_tag(costs, trace),
            show=lambda done: update(done, len(buckets) * trials, "trials"),
        )
    return replay, Learned(model, fit_priors(labels_of(trace, drafter)), tuple(found))


def _mixed(session: Session, ground: Ground, learned: Learned, spread: Spread) -> list[Mixed]:
    """What the profile is worth beside every chain and the best trees, on text that taught nothing."""
    trees = best_shapes(study_rows(learned.found), learned.schedule)
    tried = contenders(ground, learned.profile, trees, session.engine.drafting.drafter.traits.max_depth)
    return compare(ground, tried, [row.batch for row in learned.schedule], spread)


def _validate(
    session: Session,
    prompts: Seq[Seq[int]],
    single: DraftShape,
    learned: Learned,
    params: SamplingParams,
    *,
    until: float,
) -> list[Level]:
    """single: the one shape that is best over all buckets."""
    drafter, traits = session.config.drafter_name, session.engine.drafting.drafter.traits
    policies: dict[str, Policy] = {PLAIN: OffPolicy()}
    if single.nodes:
        policies[f"best single shape {shape_text(single)}"] = FixedPolicy(drafter, single)
    policies[TABLE] = TablePolicy(drafter, learned.schedule)
    policies[ADAPTIVE] = parse_mode(ADAPTIVE, drafter, traits, learned.profile)
    session.engine.clock = session.now  # what it learns step times by
    batches = sorted({one.bucket.batch for one in learned.found})
    levels = sorted({batches[0], batches[len(batches) // 2], batches[-1]})
    with bar("validating") as update:

        def show(done: int, wanted: int) -> None:
            update(done, wanted, f"rounds at concurrency {', '.join(map(str, levels))}")

        return validate(
            session.engine,
            prompts,
            policies,
            levels,
            session.out,
            max_tokens=params.max_tokens,
            most_rounds=MOST_ROUNDS,
            go_on=lambda: monotonic() < until,
            show=show,
            plans=json.dumps([list(policies), [asdict(row) for row in learned.schedule], session.clock]),
        )


def _in_use(session: Session, uri: str) -> Artifact | None:
    """The profile in use, if it is of this machine, model and drafter: then its settings are tried first."""
    if current(uri) is None:
        return None
    try:
        return read_artifact(uri, session.key)
    except DraftwingError:
        return None  # made for something else: it has no say here, and publishing keeps it beside the new one


def _tag(costs: Seq[CostRow], trace: Trace) -> str:
    content = json.dumps([[asdict(row) for row in costs], [request.output for request in trace.requests]])
    return hashlib.sha256(content.encode()).hexdigest()[:8]
