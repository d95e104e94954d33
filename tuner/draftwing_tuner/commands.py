"""`draftwing tune`: measure, collect, learn, validate, publish; and its first two parts alone."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from draftwing.commands.common import add_config_flags, config_from_args, print_json, say, tell
from draftwing.core import SamplingParams
from draftwing.errors import ConfigError
from draftwing.prompts import prompt_texts

if TYPE_CHECKING:
    from draftwing_tuner.session import Session

NO_DRAFTER = "nothing would be drafted: configure a drafter (drafters, or --drafter ngram)"
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "tune",
        help="measure this machine, learn how drafts are accepted, publish a profile",
        description="Measures what steps and drafts cost on this machine, collects text and proposals from your "
        "prompts, searches what to draft, checks it against plain decoding on held-out prompts, and publishes a "
        "profile. Ctrl-C stops; the same command goes on.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "what", nargs="?", choices=("all", "measure", "collect"), default="all", help="one part alone (default: all)"
    )
    parser.add_argument("--budget", default="5m", metavar="TIME", help="such as 90s, 5m or 1h (default: 5m)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help='your text: JSON lines of {"prompt": ...}')
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="of an answer (default: 64)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="of the answers (default: 0)")
    parser.add_argument("--trials", type=int, default=24, metavar="N", help="of each batch and context (default: 24)")
    parser.add_argument(
        "--publish", metavar="URI", help="folder or pyarrow.fs URI (default: policy.profile, else one in --out)"
    )
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a machine that others use too, one thread"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results go (default: a folder of the cache)")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    add_config_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    budget = seconds(args.budget)
    for name, least in (("max_tokens", 8), ("trials", 4)):
        if getattr(args, name) < least:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(args, name)}; expected at least {least}")
    if args.temperature < 0:
        raise ConfigError(f"--temperature is {args.temperature}; expected 0 or more")
    config = config_from_args(args).config
    from draftwing_tuner.publish import prepare
    from draftwing_tuner.session import open_session

    # What can be wrong is found out before a model is loaded.
    prompt_texts(args.prompts)
    if args.what != "measure" and not config.drafter_name:
        raise ConfigError(NO_DRAFTER)
    if uri := args.publish or config.policy.profile:
        prepare(uri)
    session = open_session(config, clock=args.clock, out=args.out, tell=tell)
    args.publish = uri or str(session.out / "profiles")
    {"all": _all, "measure": _measure, "collect": _collect}[args.what](args, session, budget)
    return 0


def _measure(args: argparse.Namespace, session: Session, budget_s: float) -> None:
    from draftwing_tuner.measuring import document, measure_costs, print_costs

    text = [token for prompt in session.prompts(args.prompts) for token in prompt]
    found = measure_costs(session, text, budget_s)
    if args.json:
        print_json(document(session, found))
    else:
        print_costs(session, found)


def _collect(args: argparse.Namespace, session: Session, budget_s: float) -> None:
    from draftwing_tuner.tuning import collect_answers

    trace = collect_answers(session, session.prompts(args.prompts), _params(args), budget_s)
    folder, tokens = session.out / "trace", sum(len(request.output) for request in trace.requests)
    (proposals,) = trace.proposals.values()
    nodes = sum(len(one.tokens) for one in proposals)
    if args.json:
        counts = {"answers": len(trace.requests), "tokens": tokens, "nodes": nodes}
        print_json({"schema": 1, "trace": str(folder), **counts})
    else:
        say(f"{len(trace.requests)} answers, {tokens} tokens, {nodes} proposed nodes in {folder}")


def _all(args: argparse.Namespace, session: Session, budget_s: float) -> None:
    from draftwing_tuner.report import command, document, print_result, write_report
    from draftwing_tuner.tuning import tune

    prompts = session.prompts(args.prompts)
    tuned = tune(session, prompts, _params(args), args.publish, budget_s=budget_s, trials=args.trials)
    report, line = session.out / "report.html", command(session, tuned, args.config_file)
    write_report(session, tuned, report, line)
    if args.json:
        print_json(document(session, tuned) | {"report": str(report), "command": line})
    else:
        print_result(session, tuned, report, line)


def _params(args: argparse.Namespace) -> SamplingParams:
    return SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature, seed=7)


def seconds(text: str) -> float:
    """Of a time such as 90s, 5m or 1.5h. ConfigError for anything else."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", text.strip())
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"--budget is {text!r}; expected a time such as 90s, 5m or 1h")
    return float(match[1]) * UNITS[match[2]]
