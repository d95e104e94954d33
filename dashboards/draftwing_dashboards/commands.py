"""The commands `draftwing dashboards export`, `push` and `check`."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from draftwing.commands.common import help_of, print_json, say
from draftwing.errors import ConfigError

TOKEN_VARIABLE = "GRAFANA_TOKEN"
PROMETHEUS = "http://127.0.0.1:9090"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("dashboards", help="Grafana dashboards: write, push and check them")
    parser.set_defaults(run=help_of(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    export = commands.add_parser(
        "export",
        help="write dashboards and provisioning files into a folder",
        description="Write the dashboards and Grafana's provisioning files into a folder, and print their paths.",
    )
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write into")
    export.add_argument(
        "--prometheus", default=PROMETHEUS, metavar="URL", help=f"for Grafana's data source ({PROMETHEUS})"
    )
    export.set_defaults(run=run_export)
    push = commands.add_parser(
        "push",
        help="put the dashboards into a running Grafana",
        description="Put the dashboards into a folder of a running Grafana, over an older version of them.",
    )
    push.add_argument("--grafana", required=True, metavar="URL", help="for example http://127.0.0.1:3000")
    push.add_argument(
        "--token-env", default=TOKEN_VARIABLE, metavar="NAME", help=f"variable that holds the token ({TOKEN_VARIABLE})"
    )
    push.set_defaults(run=run_push)
    check = commands.add_parser(
        "check",
        help="run every expression against a Prometheus that scrapes a server",
        description="Run every panel's expressions against a Prometheus that scrapes a running server. Exit code 1: "
        "one doesn't parse, names a metric that isn't there, or shows no data.",
    )
    check.add_argument("--prometheus", default=PROMETHEUS, metavar="URL", help=f"its address ({PROMETHEUS})")
    check.add_argument(
        "--prefix", default="draftwing_", metavar="TEXT", help="of the metrics: draftwing_ (default) or ray_draftwing_"
    )
    check.add_argument("--json", action="store_true", help="print one JSON document")
    check.set_defaults(run=run_check)


def run_export(args: argparse.Namespace) -> int:
    from draftwing_dashboards.export import export

    for path in export(args.out, args.prometheus):
        say(str(path))
    return 0


def run_push(args: argparse.Namespace) -> int:
    from draftwing_dashboards.push import Grafana, push

    token = os.environ.get(args.token_env)
    if not token:
        raise ConfigError(f"the variable {args.token_env} is not set; it must hold a token that may edit dashboards")
    for address in push(Grafana(args.grafana, token)):
        say(address)
    return 0


def run_check(args: argparse.Namespace) -> int:
    """Exit code 1 when a panel has a problem."""
    from draftwing_dashboards.check import check

    found = check(args.prometheus, prefix=args.prefix)
    wrong = [each for each in found if each.problem]
    if args.json:
        print_json({"schema": "draftwing.dashboards-check/1", "expressions": [asdict(each) for each in found]})
    else:
        for each in wrong:
            say(f"{each.dashboard}: {each.panel}: {each.problem}")
        say(f"{len(found)} expressions, {len(wrong)} with problems")
    return 1 if wrong else 0
