"""`draftwing simulate`: what drafting brings, in closed form from one acceptance rate, or by replay of a trace."""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwing.commands.common import print_json, say
from draftwing.errors import ConfigError
from draftwing.policy.modes import MOST_DEPTH

if TYPE_CHECKING:
    from draftwing.policy.cost import CostModel
    from draftwing_tuner.simulate import Arrivals, Simulation
    from draftwing_tuner.trace import Trace

SCHEMA = 1
CLOSED, POISSON = "closed:8", "poisson:2.5"
SEQUENCES, CACHE_TOKENS, BLOCK = 256, 2**20, 32


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "simulate",
        help="what drafting brings, in closed form or by replay of a trace",
        description="With --alpha and --k: expected tokens of one verify, (1 - a^(k+1)) / (1 - a); with cost curves "
        "also the best draft length. With --trace, --costs and --policy: the engine's loop over the trace's text, "
        "its time passing by the cost curves, beside plain decoding of the same requests. With --trace and --profile: "
        "what the profile is worth, beside plain decoding and fixed settings, under a load that climbs and falls.",
    )
    closed = parser.add_argument_group("closed form")
    closed.add_argument("--alpha", type=float, metavar="A", help="acceptance of one token, 0 to 1")
    closed.add_argument("--k", type=int, metavar="K", help="draft length")
    closed.add_argument("--batch", type=int, default=1, metavar="B", help="sequences, for the costs (default: 1)")
    closed.add_argument("--context", type=int, default=256, metavar="N", help="tokens of each (default: 256)")
    replay = parser.add_argument_group("replay")
    replay.add_argument("--trace", type=Path, metavar="DIR", help="what `draftwing tune collect` wrote")
    replay.add_argument("--profile", metavar="URI", help="what `draftwing tune` published, its costs and its two modes")
    replay.add_argument("--policy", metavar="MODE", help='off, "fixed:k=4", "fixed:tree=3x2x1" or adaptive')
    replay.add_argument("--drafter", metavar="NAME", help="one of the trace's (default: its only one)")
    replay.add_argument(
        "--arrivals",
        default=CLOSED,
        metavar="HOW",
        help=f"{CLOSED}: so many requests at a time; {POISSON}: so many a second, at random (default: {CLOSED})",
    )
    replay.add_argument("--requests", type=int, metavar="N", help="of them in all (default: each answer once)")
    replay.add_argument("--seed", type=int, default=0, metavar="S", help="of order and arrivals (default: 0)")
    parser.add_argument("--costs", type=Path, metavar="FILE", help="step-cost curves (JSON)")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.trace is not None:
        return _replay(args) if args.profile is None else _worth(args)
    if args.alpha is None or args.k is None:
        raise ConfigError("simulate needs --alpha and --k, or --trace with --profile or with --costs and --policy")
    return _closed_form(args)


def _closed_form(args: argparse.Namespace) -> int:
    from draftwing.policy.closed_form import best_length, expected_tokens
    from draftwing.policy.cost import CostModel, held_out_error
    from draftwing.policy.curves import read_curves

    if not 0 <= args.alpha <= 1:
        raise ConfigError(f"--alpha is {args.alpha}; expected 0 to 1")
    if not 0 <= args.k <= MOST_DEPTH:
        raise ConfigError(f"--k is {args.k}; expected 0 to {MOST_DEPTH}")
    _positive(args, "batch", "context")
    tokens = expected_tokens(args.alpha, args.k)
    document: dict[str, Any] = {"schema": SCHEMA, "alpha": args.alpha, "k": args.k, "expected_tokens": tokens}
    lines = [f"acceptance {args.alpha:g}, k = {args.k}: {tokens:.2f} tokens a verify"]
    if args.costs is not None:
        curves = read_curves(args.costs)
        context = args.batch * args.context
        best = best_length(args.alpha, CostModel.fit(curves), batch=args.batch, context=context, most=MOST_DEPTH)
        median, worst = held_out_error(curves)
        document |= {"costs": curves.name, "batch": args.batch, "best_k": best.k, "speedup": best.speedup}
        document["fit_error"] = {"median": median, "largest": worst}
        lines.append(f"{curves.name}, batch {args.batch}: best k = {best.k}, {best.speedup:.2f}x plain decoding")
        lines.append(f"error of the cost fit where it wasn't fitted: median {median:.1%}, largest {worst:.1%}")
    _print(args, document, lines)
    return 0


def _replay(args: argparse.Namespace) -> int:
    from draftwing.policy.cost import CostModel
    from draftwing.policy.curves import read_curves
    from draftwing_tuner.replay import ReplayDrafter
    from draftwing_tuner.trace import read_trace

    if args.costs is None or args.policy is None:
        raise ConfigError("--trace needs --costs, the curves by which time passes, and --policy")
    trace, curves = read_trace(args.trace), read_curves(args.costs)
    costs = CostModel.fit(curves)
    drafter = ReplayDrafter(trace, _drafter_name(args, trace))
    plain = _served(args, trace, costs, drafter, "off")
    world = plain if args.policy == "off" else _served(args, trace, costs, drafter, args.policy)
    numbers = _numbers(world)
    speedup = plain.clock() / world.clock()
    document = {
        "schema": SCHEMA,
        "trace": str(args.trace),
        "costs": curves.name,
        "policy": args.policy,
        "arrivals": args.arrivals,
        **numbers,
        "plain_seconds": plain.clock(),
        "speedup": speedup,
    }
    lines = [
        f"{args.policy} on {curves.name}, {args.arrivals}: {numbers['requests']} requests, {numbers['tokens']} tokens",
        f"{numbers['tokens_per_s']:.1f} tokens/s in {numbers['steps']} steps, {speedup:.3f}x plain decoding",
        f"{numbers['draft_tokens']} drafted tokens verified, {numbers['accepted_tokens']} accepted; milliseconds a "
        f"token: median {numbers['token_ms']['p50']:.1f}, 99th percentile {numbers['token_ms']['p99']:.1f}",
    ]
    _print(args, document, lines)
    return 0


def _worth(args: argparse.Namespace) -> int:
    """The comparison at the end of `draftwing tune`, again."""
    from draftwing.policy.artifact import read_artifact
    from draftwing.policy.cost import CostModel
    from draftwing.policy.profile import profile_of
    from draftwing_tuner.history import best_shapes, study_of
    from draftwing_tuner.mixed import compare, contenders, mixed_rows
    from draftwing_tuner.rates import Ground
    from draftwing_tuner.replay import largest_shape
    from draftwing_tuner.show import table
    from draftwing_tuner.tasks import in_turn
    from draftwing_tuner.trace import read_trace

    for name in ("costs", "policy"):
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name} has no part in --profile, which brings its own; leave one out")
    trace, artifact = read_trace(args.trace), read_artifact(args.profile, None)
    if not artifact.schedule:
        raise ConfigError(f"profile {artifact.digest} in {args.profile} has no schedule to compare; run draftwing tune")
    profile = profile_of(artifact)
    name = _drafter_name(args, trace)
    block = artifact.manifest.block
    costs = CostModel.fit(artifact.curves, block=block)
    ground = Ground(trace, name, costs, "block" if block else "incremental")
    trees = best_shapes(study_of(artifact), artifact.schedule)
    batches = [row.batch for row in artifact.schedule]
    found = compare(ground, contenders(ground, profile, trees, largest_shape(trace, name).depth), batches, in_turn)
    if args.json:
        document = {"schema": SCHEMA, "trace": str(args.trace), "profile": args.profile, "digest": artifact.digest}
        print_json(document | {"settings": [asdict(setting) for setting in found]})
    else:
        table(f"profile {artifact.digest}: rates over plain decoding's, by replay", *mixed_rows(found, batches))
    return 0


def _served(args: argparse.Namespace, trace: Trace, costs: CostModel, drafter: Any, mode: str) -> Simulation:
    """All requests, to their end."""
    from draftwing.engine.kv_cache import BlockPool
    from draftwing.engine.scheduler import Limits
    from draftwing.policy.modes import parse_mode
    from draftwing.policy.profile import Profile
    from draftwing_tuner.simulate import Simulation, drive

    world = Simulation(
        trace,
        costs=costs,
        policy=parse_mode(mode, "replay", drafter.traits, Profile(costs=costs, frozen=True)),
        drafter=drafter,
        pool=BlockPool(CACHE_TOKENS // BLOCK, BLOCK, prefix=all(one.prompt is not None for one in trace.requests)),
        limits=Limits(SEQUENCES, 2**20, 8192, 512),
    )
    drive(world, _arrivals(args, trace), world.clock)
    return world


def _arrivals(args: argparse.Namespace, trace: Trace) -> Arrivals:
    from draftwing_tuner.simulate import Closed, Scripted, asks

    draw = random.Random(args.seed)
    count = len(trace.requests) if args.requests is None else args.requests
    if count < 1:
        raise ConfigError(f"--requests is {count}; expected at least 1")
    order: list[int] = []
    while len(order) < count:
        order += draw.sample(range(len(trace.requests)), len(trace.requests))
    requests = [asks(trace.requests[which], number) for number, which in enumerate(order[:count])]
    match = re.fullmatch(r"(closed:(?P<together>\d{1,4})|poisson:(?P<rate>\d{1,6}(\.\d{1,6})?))", args.arrivals)
    amount = float(match["together"] or match["rate"]) if match else 0.0
    if match is None or amount == 0:
        raise ConfigError(f"--arrivals is {args.arrivals!r}; expected such as {CLOSED} or {POISSON}")
    if match["together"]:
        return Closed(requests, int(amount))
    at, script = 0.0, []
    for request in requests:
        at += draw.expovariate(amount)
        script.append((at, request))
    return Scripted(script)


def _drafter_name(args: argparse.Namespace, trace: Trace) -> str:
    names = sorted(trace.proposals)
    if args.drafter is None and len(names) != 1:
        raise ConfigError(f"the trace has {len(names)} drafters; choose by --drafter: {', '.join(names)}")
    return str(args.drafter or names[0])


def _numbers(world: Simulation) -> dict[str, Any]:
    import numpy as np

    tokens = sum(one.tokens for one in world.served)
    each = np.array([1e3 * (one.ended - one.came) / one.tokens for one in world.served])
    p50, p99 = np.quantile(each, (0.5, 0.99)).tolist()
    return {
        "requests": len(world.served),
        "tokens": tokens,
        "seconds": world.clock(),
        "tokens_per_s": tokens / world.clock(),
        "steps": world.counters.steps,
        "draft_tokens": world.counters.draft_tokens,
        "accepted_tokens": world.counters.accepted_tokens,
        "preemptions": world.counters.preemptions,
        "token_ms": {"p50": p50, "p99": p99},
    }


def _positive(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name} is {getattr(args, name)}; expected at least 1")


def _print(args: argparse.Namespace, document: dict[str, Any], lines: list[str]) -> None:
    if args.json:
        print_json(document)
    else:
        for line in lines:
            say(line)
