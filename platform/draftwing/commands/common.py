"""The flags that set the config, the same on every command that takes one, and how results are printed."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftwing.config import LoadedConfig, load_config, parse_setting, require_model
from draftwing.errors import ConfigError
from draftwing.limits import shown
from draftwing.policy.modes import MOST_DEPTH
from draftwing.speculative_config import from_speculative_config

# Flag, its metavar, the setting it gives, and its help.
_SHORTCUTS = (
    ("--model", "PATH", "model.path", "the target: folder, hub id or GGUF file"),
    ("--policy", "MODE", "policy.mode", 'how much to draft: adaptive, off, "fixed:k=4", "fixed:tree=3x2x1"'),
    ("--dtype", "TYPE", "model.dtype", "auto, float32, bfloat16 or float16"),
    ("--device", "DEVICE", "model.device", "auto, cpu or cuda"),
    ("--cpu-threads", "N", "model.cpu_threads", "threads of one rank on a CPU"),
)
_PRECEDENCE = (
    "The first source that has a value wins: a flag, a variable (DRAFTWING_MODEL__PATH for model.path), the file of "
    "-c, else ./draftwing.yaml, else $XDG_CONFIG_HOME/draftwing/config.yaml, a default."
)


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags; `config_from_args` reads them. Their names start with `config_` in the parsed arguments."""
    group = parser.add_argument_group("config", _PRECEDENCE)
    group.add_argument("-c", "--config", dest="config_file", metavar="FILE", type=Path, help="YAML config file")
    for flag, metavar, key, text in _SHORTCUTS:
        group.add_argument(flag, dest=f"config_{key}", metavar=metavar, help=f"{text} ({key})")
    group.add_argument(
        "--drafter",
        dest="config_drafter",
        metavar="METHOD[=PATH]",
        help="draft with this method, or none; PATH: its checkpoint, where it has one",
    )
    group.add_argument("--draft-tokens", dest="config_draft_tokens", metavar="N", help="draft N tokens ahead, 0: none")
    group.add_argument("--speculative-config", dest="config_speculative", metavar="JSON", help="as vLLM takes it")
    group.add_argument(
        "--set",
        dest="config_set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="any setting, for example limits.sequences=8 (`draftwing config show` lists them); may be repeated",
    )


def config_flags(args: argparse.Namespace) -> list[str]:
    """The flags that were given, but for -c, as a shell takes them."""
    given = [(flag, getattr(args, f"config_{key}")) for flag, _, key, _ in _SHORTCUTS]
    given += [("--drafter", args.config_drafter), ("--draft-tokens", args.config_draft_tokens)]
    given += [("--speculative-config", args.config_speculative), *(("--set", each) for each in args.config_set)]
    return [f"{flag} {shlex.quote(value)}" for flag, value in given if value is not None]


def config_from_args(args: argparse.Namespace, *, need_model: bool = True) -> LoadedConfig:
    """Load the config that the flags, the environment and the file make. ConfigError lists what is wrong."""
    loaded = load_config(args.config_file, _overrides(args))
    if need_model:
        require_model(loaded.config)
    return loaded


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Settings by dotted key, each given by one flag only."""
    found: dict[str, Any] = {}
    flags: dict[str, str] = {}

    def put(key: str, value: Any, flag: str) -> None:
        if key in flags:
            raise ConfigError(f"{flags[key]} and {flag} both set {key}; give one")
        found[key], flags[key] = value, flag

    for flag, _, key, _ in _SHORTCUTS:
        if (text := getattr(args, f"config_{key}")) is not None:
            put(key, parse_setting(key, text, source=flag), flag)
    if (text := args.config_speculative) is not None:
        for key, value in from_speculative_config(text).items():
            put(key, value, "--speculative-config")
    if (text := args.config_drafter) is not None:
        method, equals, path = text.partition("=")
        entry = {"method": method, "path": path} if equals else {"method": method}
        put("drafters", [] if text == "none" else [entry], "--drafter")
        if text == "none":
            put("policy.mode", "off", "--drafter none")
    if (text := args.config_draft_tokens) is not None:
        put("policy.mode", _draft_tokens(text), "--draft-tokens")
    for text in args.config_set:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set is {shown(text)}; expected KEY=VALUE, for example limits.sequences=8")
        put(key, parse_setting(key, value), f"--set {key}")
    return found


def _draft_tokens(text: str) -> str:
    """The policy mode that drafts so many tokens."""
    count = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not 0 <= count <= MOST_DEPTH:
        raise ConfigError(f"--draft-tokens is {shown(text)}; expected a whole number from 0 to {MOST_DEPTH}")
    return f"fixed:k={count}" if count else "off"


def help_of(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """What a command with sub-commands runs when none is named: it prints its help, and that is no error."""

    def run(_: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    return run


def print_json(document: dict[str, Any]) -> None:
    """A result as one JSON document on stdout. It must hold a `schema` version."""
    json.dump(document, sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def say(line: str = "") -> None:
    """A line of a result, on stdout."""
    sys.stdout.write(line + "\n")


def tell(line: str) -> None:
    """A line of progress, on stderr at once."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
