"""`draftwing tune`: measure, collect, learn, validate, publish."""

from __future__ import annotations

import argparse

from draftwing.commands.common import help_of


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("tune", help="measure this machine and publish a profile", allow_abbrev=False)
    parser.set_defaults(run=help_of(parser))
