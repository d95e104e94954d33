"""`draftwing policy show|explain`: the schedule and parameters of a policy, and a logged decision in words."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from draftwing.commands.common import help_of, print_json, say
from draftwing.errors import ConfigError

SCHEMA = 1


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("policy", help="what a policy believes, and why it decided so", allow_abbrev=False)
    parser.set_defaults(run=help_of(parser))
    parts = parser.add_subparsers(title="commands", metavar="COMMAND")
    show = parts.add_parser(
        "show",
        help="schedule and parameters, after a log or of a profile",
        description="Print what a policy believes: its schedule, learned acceptance by depth, and cost factors.",
        allow_abbrev=False,
    )
    show.add_argument("--log", type=Path, metavar="FILE", help="a decision log (policy.log): the state at its end")
    show.add_argument("--profile", metavar="URI", help="a published profile")
    why = parts.add_parser(
        "explain",
        help="one decision of a log in words",
        description="Make one logged decision again and say why: nodes, expected tokens and time, the runner-up.",
        allow_abbrev=False,
    )
    why.add_argument("log", type=Path, metavar="FILE", help="a decision log, as policy.log writes it")
    why.add_argument("--step", type=int, default=-1, metavar="N", help="from 0 on; -1 is the last (default)")
    for part, run in ((show, run_show), (why, run_explain)):
        part.add_argument("--json", action="store_true", help="one JSON document")
        part.set_defaults(run=run)


def run_show(args: argparse.Namespace) -> int:
    from draftwing.decisions.log import read_log
    from draftwing.decisions.status import status_of
    from draftwing.policy.adaptive import AdaptivePolicy
    from draftwing.policy.artifact import read_artifact
    from draftwing.policy.base import Policy
    from draftwing.policy.modes import parse_mode
    from draftwing.policy.profile import profile_of

    if (args.log is None) == (args.profile is None):
        raise ConfigError("draftwing policy show needs --log FILE or --profile URI, and not both")
    policy: Policy
    if args.log is not None:
        origin, steps = read_log(args.log)
        policy = origin.make()
        for step in steps:
            policy.observe(step.inputs, step.plan, step.result)
    else:
        policy = parse_mode("adaptive", profile=profile_of(read_artifact(args.profile, None)))
    document: dict[str, Any] = {"schema": SCHEMA, "status": asdict(status_of(policy))}
    if isinstance(policy, AdaptivePolicy):
        document["parameters"] = _parameters(policy)
    if args.json:
        print_json(document)
        return 0
    for line in _shown(document):
        say(line)
    return 0


def _parameters(policy: Any) -> dict[str, Any]:
    model, costs = policy.acceptance, policy.costs
    depth = policy.largest.depth
    return {
        "acceptance": [
            {"depth": d + 1, "w": float(model.weights[d, 0]), "b": float(model.weights[d, 1]), "hoped": float(h)}
            for d, h in enumerate(model.hoped[0, :depth, 0])
        ],
        "classes": [shift.value for shift in model.classes],
        "cost_factors": [float(value) for value in costs.correction.factor([1, 2, 4, 8, 16, 32, 64])],
        "costs_measured": costs.measured,
        "guard_trips": policy.guard.trips,
    }


def _shown(document: dict[str, Any]) -> list[str]:
    status, parameters = document["status"], document.get("parameters")
    lines = [f"mode {status['mode']}, drafter {status['drafter'] or '-'}, profile {status['profile'] or 'none'}"]
    if status["tripped"]:
        lines.append(f"speculation is off: {status['reason']}")
    if status["ratio"] is not None:
        lines.append(
            f"{status['ratio']:.2f}x plain decoding (+-{status['half_width']:.2f}), {status['predicted']:.2f}x "
            f"expected; step times are off by {status['cost_error']:.1%} (median)"
        )
    if status["schedule"]:
        lines.append("sequences  draft length  expected")
        lines += [f"{batch:9}  {length:12}  {ratio:7.2f}x" for batch, length, ratio in status["schedule"]]
    if parameters is not None:
        lines.append("depth      w      b  hoped")
        lines += [
            f"{row['depth']:5}  {row['w']:5.2f}  {row['b']:5.2f}  {row['hoped']:5.2f}"
            for row in parameters["acceptance"]
        ]
        factors = ", ".join(f"{value:.2f}" for value in parameters["cost_factors"])
        source = "a profile" if parameters["costs_measured"] else "a guess, corrected by the steps that were run"
        lines.append(f"costs from {source}; factors at 1, 2, 4, ... 64 rows: {factors}")
    return lines


def run_explain(args: argparse.Namespace) -> int:
    from draftwing.decisions.explain import explain
    from draftwing.decisions.log import read_log, replayed

    origin, steps = read_log(args.log)
    number = args.step if args.step >= 0 else len(steps) + args.step
    if not 0 <= number < len(steps):
        raise ConfigError(f"--step is {args.step}; {args.log} has steps 0 to {len(steps) - 1}")
    policy, step = next(pair for i, pair in enumerate(replayed(origin, steps)) if i == number)
    found = explain(policy, step)
    if args.json:
        print_json({"schema": SCHEMA, "step": number, **asdict(found)})
    else:
        say(f"step {number}")
        for line in found.lines():
            say(line)
    return 0
