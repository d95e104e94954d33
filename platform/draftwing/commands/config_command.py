"""`draftwing config show`: the value of every setting, and where it comes from."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from draftwing.commands.common import add_config_flags, config_from_args, help_of, print_json
from draftwing.config import LoadedConfig, settings
from draftwing.config_errors import HIDDEN, holds_secret

SCHEMA = 1


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("config", help="show the config as it is resolved")
    parser.set_defaults(run=help_of(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    show = commands.add_parser(
        "show", help="print every setting, its value and its origin", description="Print every setting and its origin."
    )
    show.add_argument("--json", action="store_true", help="one JSON document")
    add_config_flags(show)
    show.set_defaults(run=run_show)


def run_show(args: argparse.Namespace) -> int:
    loaded = config_from_args(args, need_model=False)
    values = shown_values(loaded)
    if args.json:
        rows = {key: {"value": value, "origin": loaded.origins[key]} for key, value in values.items()}
        print_json({"schema": SCHEMA, "file": str(loaded.file) if loaded.file else None, "settings": rows})
        return 0
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    wide = max(map(len, texts))
    middle = min(max(map(len, texts.values())), 40)
    for key, text in texts.items():
        sys.stdout.write(f"{key:<{wide}}  {text:<{middle}}  {loaded.origins[key]}\n")
    return 0


def shown_values(loaded: LoadedConfig) -> dict[str, Any]:
    """Each setting's value as JSON data, secrets hidden."""
    values = {}
    data = loaded.config.model_dump(mode="json")
    for key, field in settings().items():
        value: Any = data
        for part in key.split("."):
            value = None if value is None else value[part]
        values[key] = HIDDEN if value is not None and holds_secret(field.annotation) else value
    return values
