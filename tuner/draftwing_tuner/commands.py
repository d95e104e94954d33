"""`draftwing tune`: measure, collect, learn, validate, publish; and its first two parts alone."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from draftwing.commands.common import add_config_flags, config_from_args, print_json, tell
from draftwing.errors import ConfigError

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "tune",
        help="measure this machine",
        description="measure: what steps cost on this machine, by rows, sequences and context, and what the drafter "
        "costs. Ctrl-C stops; the same command goes on.",
        allow_abbrev=False,
    )
    parser.add_argument("what", choices=("measure",), help="the part to run")
    parser.add_argument("--budget", default="5m", metavar="TIME", help="such as 90s, 5m or 1h (default: 5m)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help='your text: JSON lines of {"prompt": ...}')
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a machine that others use too, one thread"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results go (default: a folder of the cache)")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    add_config_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    budget = seconds(args.budget)
    config = config_from_args(args).config
    from draftwing_tuner.measuring import document, measure_costs, print_costs
    from draftwing_tuner.session import open_session

    session = open_session(config, clock=args.clock, out=args.out, tell=tell)
    text = [token for prompt in session.prompts(args.prompts) for token in prompt]
    found = measure_costs(session, text, budget)
    if args.json:
        print_json(document(session, found))
    else:
        print_costs(session, found)
    return 0


def seconds(text: str) -> float:
    """Of a time such as 90s, 5m or 1.5h. ConfigError for anything else."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", text.strip())
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"--budget is {text!r}; expected a time such as 90s, 5m or 1h")
    return float(match[1]) * UNITS[match[2]]
