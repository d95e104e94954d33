"""The command `draftwing serve`. Neither Ray nor torch is imported until it runs."""

from __future__ import annotations

import argparse

from draftwing.commands.common import add_config_flags, config_from_args


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a model with an OpenAI-style HTTP API, on a Ray of its own (or where RAY_ADDRESS points).",
    )
    add_config_flags(parser)
    parser.add_argument("--host", metavar="HOST", help="address to listen on (server.host)")
    parser.add_argument("--port", metavar="N", help="port to listen on (server.port)")
    parser.add_argument("--json", action="store_true", help="print the address as one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 after SIGTERM, 130 after Ctrl-C."""
    for name in ("host", "port"):
        if (value := getattr(args, name)) is not None:
            args.config_set.append(f"server.{name}={value}")
    loaded = config_from_args(args)
    from draftwing_serve.launcher import ServeOptions
    from draftwing_serve.launcher import run as serve

    return serve(loaded.config, ServeOptions(as_json=args.json, verbose=args.log_level == "debug"))
