"""`draftwing simulate --alpha A --k K`: what drafting brings when each token is accepted with one probability."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from draftwing.commands.common import print_json, say
from draftwing.errors import ConfigError
from draftwing.policy.modes import MOST_DEPTH

SCHEMA = 1


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Expected tokens of one verify: (1 - a^(k+1)) / (1 - a); with cost curves also the best draft length."
    parser = subparsers.add_parser("simulate", help="what a draft length brings, in closed form", description=text)
    parser.add_argument("--alpha", type=float, required=True, metavar="A", help="acceptance of one token, 0 to 1")
    parser.add_argument("--k", type=int, required=True, metavar="K", help="draft length")
    parser.add_argument("--costs", type=Path, metavar="FILE", help="step-cost curves (JSON): best k and its speedup")
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="sequences, for the costs (default: 1)")
    parser.add_argument("--context", type=int, default=256, metavar="N", help="tokens of each (default: 256)")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from draftwing.policy.closed_form import best_length, expected_tokens
    from draftwing.policy.cost import CostModel, held_out_error
    from draftwing.policy.curves import read_curves

    if not 0 <= args.alpha <= 1:
        raise ConfigError(f"--alpha is {args.alpha}; expected 0 to 1")
    if not 0 <= args.k <= MOST_DEPTH:
        raise ConfigError(f"--k is {args.k}; expected 0 to {MOST_DEPTH}")
    for name in ("batch", "context"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name} is {getattr(args, name)}; expected at least 1")
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
    if args.json:
        print_json(document)
    else:
        for line in lines:
            say(line)
    return 0
