"""A day of mixed load, replayed under every policy and every cost curve: does `adaptive` earn its name?

Text and proposals are real (`collect_days.py`), time is that of the cost curve, and the simulator is the engine's own
loop (`draftwing_tuner.simulate`). The drafter is `thin`; whatever it took when the trace was collected, a level of
drafts is priced by the curve's `draft_step_ms` for the nodes it grows from. `data/phases.json` holds the two days, made
before any policy was tuned: every rule's constants are searched on the training day, by as many Optuna trials for each,
and it has served that day before the held-out one, which has other prompts, loads, lengths and seeds. Fixed settings
are not chosen beforehand: the best of all of them in each phase, and the best single one, stand for them.

usage: python benchmarks/replay_day.py [--json] [--costs FILE|FOLDER] [--trials 8] [--data FOLDER] [--no-loops]
Exit code 1: `adaptive` is, on any curve, below 0.98x the best fixed setting of a phase, below the best single fixed
setting or 0.995x any other rule over the day, or over all curves (geometric mean) below 1.10x the best single fixed
setting or any other rule.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import log
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import optuna

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the file runs by its path

from benchmarks.replay_rules import DRAFTER, MOST, EmaRule, GoodputRule, TrimRule
from draftwing.core import NO_DRAFT, DraftShape, Request
from draftwing.drafters.tree import full_size
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.scheduler import Limits
from draftwing.policy.adaptive import AdaptivePolicy
from draftwing.policy.artifact import ScheduleRow
from draftwing.policy.base import Policy
from draftwing.policy.cost import CostModel
from draftwing.policy.curves import read_curves
from draftwing.policy.modes import FixedPolicy, OffPolicy
from draftwing.policy.profile import Profile
from draftwing.policy.table import TablePolicy
from draftwing.testing.loops import loops
from draftwing_tuner.replay import ReplayDrafter, largest_shape
from draftwing_tuner.simulate import Closed, Simulation, asks, drive
from draftwing_tuner.trace import Trace, read_trace

SCHEMA = 1
DATA = Path(__file__).parent / "data"
COSTS = Path(__file__).parents[1] / ".." / "shared" / "data" / "costs"
TREES = ((2,), (3,), (2, 1), (2, 2), (3, 1), (3, 2), (2, 1, 1), (2, 2, 1), (3, 2, 1), (2, 1, 1, 1, 1))
RULES = ("adaptive", "table", "ema", "goodput", "trim")
BATCHES = (1, 2, 4, 8, 16, 32, 64)  # the largest of each row of the table
PHASE, SINGLE, OTHERS, GAIN = 0.98, 1.00, 0.995, 1.10


def shape(branching: tuple[int, ...]) -> DraftShape:
    return DraftShape(branching, full_size(branching))


FIXED = {f"k={k}": shape((1,) * k) for k in range(1, MOST + 1)} | {
    f"tree={'x'.join(map(str, tree))}": shape(tree) for tree in TREES
}


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    concurrency: int
    requests: list[Request]


@dataclass(frozen=True, slots=True)
class Day:
    trace: Trace
    drafter: ReplayDrafter
    phases: list[Phase]


def read_day(folder: Path, name: str, *, looping: bool = True) -> Day:
    """looping False: without the answers that repeat themselves to their end, on which drafts look better."""
    trace = read_trace(folder / name)
    answers = [one for one in trace.requests if looping or not loops(one.output)]
    plan = json.loads((DATA / "phases.json").read_text())["days"][name]
    draw = random.Random(plan["seed"])
    phases = []
    number = 0
    for entry in plan["phases"]:
        kinds, shares = zip(*entry["kinds"].items(), strict=True)
        requests = []
        for kind in draw.choices(kinds, shares, k=entry["requests"]):
            answer = draw.choice([one for one in answers if one.kind == kind])
            requests.append(asks(answer, number, draw.randint(*plan["lengths"])))
            number += 1
        phases.append(Phase(entry["name"], entry["concurrency"], requests))
    return Day(trace, ReplayDrafter(trace, DRAFTER), phases)


def serve(day: Day, policy: Policy, costs: CostModel) -> list[float]:
    """Seconds of each phase. Every policy makes the same tokens in it."""
    world = Simulation(
        day.trace,
        costs=costs,
        policy=policy,
        drafter=day.drafter,
        pool=BlockPool(4096, 16),
        limits=Limits(64, 4096, 8192, 512),
    )
    marks = [0.0]
    for phase in day.phases:
        drive(world, Closed(phase.requests, phase.concurrency), world.clock)
        marks.append(world.clock())
    return [after - before for before, after in itertools.pairwise(marks)]


Make = Callable[..., Policy]


def adaptive(costs: CostModel, largest: DraftShape, traits: Any, slope: float = 0.5) -> Policy:
    profile = Profile(costs=costs, frozen=True)
    profile.acceptance.prior[:, :2] = slope
    return AdaptivePolicy(DRAFTER, largest, traits, profile)


def table(**rows: str) -> Policy:
    shapes = [(int(last), FIXED[rows[last]] if rows[last] != "off" else NO_DRAFT) for last in rows]
    return TablePolicy(
        DRAFTER, [ScheduleRow(last, 2**20, one.branching, one.nodes, 0.0, 0.0, 0.0) for last, one in shapes]
    )


def searched(trial: optuna.Trial, rule: str) -> dict[str, Any]:
    """The constants of a rule, and between what they are looked for."""
    if rule == "adaptive":
        return {"slope": trial.suggest_float("slope", 0.2, 1.2)}
    if rule == "table":
        settings = ["off", *FIXED]
        return {str(last): trial.suggest_categorical(str(last), settings) for last in BATCHES}
    if rule == "ema":
        return {
            "up": trial.suggest_float("up", -2.0, 1.0),
            "down": trial.suggest_float("down", -1.0, 2.0),
            "first": trial.suggest_int("first", 0, 3),
        }
    if rule == "goodput":
        return {
            "keep": trial.suggest_float("keep", 0.7, 0.99),
            "prior": trial.suggest_float("prior", 1.0, 32.0, log=True),
        }
    return {"length": trial.suggest_int("length", 1, MOST), "slope": trial.suggest_float("slope", 0.2, 1.2)}


def tuned(rule: str, make: Make, day: Day, costs: CostModel, trials: int, first: Mapping[str, Any]) -> dict[str, Any]:
    """The constants with the shortest training day. first: what is tried before anything else."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    if first:
        study.enqueue_trial(dict(first))
    study.optimize(lambda trial: sum(serve(day, make(**searched(trial, rule)), costs)), n_trials=trials)
    return dict(study.best_params)


def best_table(day: Day, costs: CostModel, fixed: Mapping[str, list[float]], plain: list[float]) -> dict[str, str]:
    """For each row the best setting of the training phase of the nearest load: where its search begins."""
    every = {"off": plain, **fixed}
    rows = {}
    for last in BATCHES:
        near = min(range(len(day.phases)), key=lambda i: abs(log(day.phases[i].concurrency / last)))
        rows[str(last)] = min(every, key=lambda name: every[name][near])
    return rows


def judge(path: Path, days: Mapping[str, Day], trials: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """One curve: all policies on the held-out day, as ratios to plain decoding."""
    curves = read_curves(path)
    costs = CostModel.fit(curves)
    train, day = days["train"], days["held_out"]
    widest, traits = largest_shape(train.trace, DRAFTER), day.drafter.traits
    makers: dict[str, Make] = {
        "adaptive": partial(adaptive, costs, widest, traits),
        "table": table,
        "ema": EmaRule,
        "goodput": partial(GoodputRule, costs),
        "trim": partial(TrimRule, costs),
    }
    trained = {name: serve(train, FixedPolicy(DRAFTER, one), costs) for name, one in FIXED.items()}
    firsts = {"table": best_table(train, costs, trained, serve(train, OffPolicy(), costs))}
    plain = serve(day, OffPolicy(), costs)
    times = {name: serve(day, FixedPolicy(DRAFTER, one), costs) for name, one in FIXED.items()}
    constants = {}
    for rule in RULES:
        constants[rule] = tuned(rule, makers[rule], train, costs, trials, firsts.get(rule, {}))
        policy = makers[rule](**constants[rule])
        serve(train, policy, costs)
        times[rule] = serve(day, policy, costs)
        tell(f"{curves.name}: {rule} {sum(plain) / sum(times[rule]):.3f} {constants[rule]}")
    single = min(FIXED, key=lambda name: sum(times[name]))
    phases = []
    for i, phase in enumerate(day.phases):
        best = min(FIXED, key=lambda name: times[name][i])
        ratios = {rule: plain[i] / times[rule][i] for rule in RULES}
        phases.append(
            {"name": phase.name, "concurrency": phase.concurrency, "best_fixed": plain[i] / times[best][i]}
            | {"setting": best}
            | ratios
        )
    overall = {"best_fixed": sum(plain) / sum(times[single]), "setting": single}
    overall |= {rule: sum(plain) / sum(times[rule]) for rule in RULES}
    every = {name: sum(plain) / sum(times[name]) for name in FIXED}
    return {
        "name": curves.name,
        "phases": phases,
        "overall": overall,
        "fixed": every,
        "constants": constants,
        "missed": missed(phases, overall),
    }


def missed(phases: list[dict[str, Any]], overall: Mapping[str, Any]) -> list[str]:
    """Bars of one curve that `adaptive` is under."""
    found = [
        f"{phase['name']}: {phase['adaptive']:.3f}, under {PHASE}x the best fixed {phase['best_fixed']:.3f}"
        for phase in phases
        if phase["adaptive"] < PHASE * phase["best_fixed"]
    ]
    bars = {"best_fixed": SINGLE} | {rule: OTHERS for rule in RULES if rule != "adaptive"}
    return found + [
        f"the day: {overall['adaptive']:.3f}, under {bar}x {name} {overall[name]:.3f}"
        for name, bar in bars.items()
        if overall["adaptive"] < bar * overall[name]
    ]


def together(curves: list[dict[str, Any]]) -> tuple[dict[str, float], list[str]]:
    """Geometric means over the curves, and what is missed there."""
    names = ("best_fixed", *RULES)
    means = {name: geometric_mean([curve["overall"][name] for curve in curves]) for name in names}
    found = [
        f"all curves: {means['adaptive']:.3f}, not above {rule} {means[rule]:.3f}"
        for rule in RULES[1:]
        if means["adaptive"] <= means[rule]
    ]
    if means["adaptive"] < GAIN * means["best_fixed"]:
        found.append(f"all curves: {means['adaptive']:.3f}, under {GAIN}x the best fixed {means['best_fixed']:.3f}")
    return means, found


def show(curve: Mapping[str, Any]) -> None:
    print(f"\n{curve['name']}  (throughput over plain decoding's)")
    print(f"{'phase':12}{'at once':>8}{'best fixed':>24}" + "".join(f"{rule:>10}" for rule in RULES))
    for phase in [*curve["phases"], {"name": "the day", "concurrency": ""} | curve["overall"]]:
        fixed = f"{phase['setting']} {phase['best_fixed']:.3f}"
        rest = "".join(f"{phase[rule]:10.3f}" for rule in RULES)
        print(f"{phase['name']:12}{phase['concurrency']:>8}{fixed:>24}{rest}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--costs", type=Path, default=COSTS, help="a cost curve, or a folder of them")
    parser.add_argument("--trials", type=int, default=8, help="Optuna trials for each rule and curve")
    parser.add_argument("--data", type=Path, default=DATA, help="a folder with the traces train and held_out")
    parser.add_argument("--no-loops", action="store_true", help="without the answers that repeat themselves")
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    paths = sorted(args.costs.glob("*.json")) if args.costs.is_dir() else [args.costs]
    if not paths:
        parser.error(f"--costs {args.costs} holds no .json file")
    days = {name: read_day(args.data, name, looping=not args.no_loops) for name in ("train", "held_out")}
    curves = [judge(path, days, args.trials, lambda line: print(line, file=sys.stderr, flush=True)) for path in paths]
    means, found = together(curves)
    found += [f"{curve['name']}: {line}" for curve in curves for line in curve["missed"]]
    document = {"schema": SCHEMA, "curves": curves, "geometric_mean": means, "missed": found}
    if args.json:
        print(json.dumps(document, indent=2))
    else:
        for curve in curves:
            show(curve)
        print("\nover all curves: " + ", ".join(f"{name} {value:.3f}" for name, value in means.items()))
        for line in found:
            print(f"MISSED {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
