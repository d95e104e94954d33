"""The `draftwing` command. Sub-commands come from the entry-point group `draftwing.commands`.

An entry point's name is the sub-command, its value `module:register`; `register(subparsers)` adds one parser, with
`set_defaults(run=...)` a function from the parsed arguments to an exit code. Exit codes: 0 fine, 1 a run failed, 2
usage or config, 3 environment, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import os
import select
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NoReturn

from draftwing import __version__
from draftwing.commands.common import help_of
from draftwing.errors import DraftwingError, SetupError
from draftwing.limits import shown
from draftwing.logs import FORMATS, LEVELS, configure_logging

GROUP = "draftwing.commands"
INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Flags can't be abbreviated: a flag added later must not change what a script means. An error is one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        known = [str(choice) for choice in action.choices or ()]
        if known and value not in known:
            message = f"{shown(value)} is not one of {', '.join(known)}{_meant(str(value), known)}"
            raise argparse.ArgumentError(action, message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Usage errors and --help raise SystemExit, as argparse does."""
    debug = False
    try:
        parser = build_parser(found_commands())
        args, unknown = parser.parse_known_args(argv)
        if unknown:
            flags = [flag for command in _all_below(parser) for flag in command._option_string_actions]
            parser.error(f"unknown argument {shown(unknown[0])}{_meant(unknown[0], flags)}")
        debug = args.debug
        configure_logging(args.log_level, args.log_format)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError as error:
        return 1 if _reader_left() else _report(error, debug)
    except Exception as error:  # noqa: BLE001 (the last stop: one line for the user, the traceback on demand)
        return _report(error, debug)


def found_commands() -> list[EntryPoint]:
    """The installed sub-commands by name. SetupError if two packages bring the same one."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise SetupError(
                f"command {point.name!r} comes from {other.value} and {point.value}; uninstall one of them"
            )
    return [found[name] for name in sorted(found)]


def build_parser(commands: Sequence[EntryPoint]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(
        prog="draftwing", description="Serve large language models with speculative decoding."
    )
    parser.add_argument("--version", action="version", version=f"draftwing {__version__}")
    _add_global_flags(parser, debug=False, log_level="info", log_format="text")
    parser.set_defaults(run=help_of(parser))
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for point in commands:
        _register(point, subparsers)
    for command in _all_below(parser):
        # After the command's name too, where most people look for them.
        absent = argparse.SUPPRESS
        _add_global_flags(command, debug=absent, log_level=absent, log_format=absent)
    return parser


def _add_global_flags(parser: argparse.ArgumentParser, *, debug: Any, log_level: Any, log_format: Any) -> None:
    group = parser.add_argument_group("logs")
    group.add_argument("--debug", action="store_true", default=debug, help="show the traceback of an error")
    group.add_argument("--log-level", choices=LEVELS, default=log_level, help="what goes to stderr (default: info)")
    group.add_argument("--log-format", choices=FORMATS, default=log_format, help="text or json (default: text)")


def _register(point: EntryPoint, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """A command that can't be loaded stays listed, says why when it is called, and leaves the others alone."""
    try:
        register: Callable[[Any], None] = point.load()
    except (ImportError, AttributeError) as error:
        reason = f"command {point.name!r} can't be loaded from {point.value}: {error}"

        def unavailable(_: argparse.Namespace) -> int:
            raise SetupError(reason)

        subparsers.add_parser(point.name, help="(can't be loaded)").set_defaults(run=unavailable)
        return
    register(subparsers)


def _all_below(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parsers of all sub-commands, theirs included."""
    below = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                below += [child, *_all_below(child)]
    return below


def _meant(word: str, known: Sequence[str]) -> str:
    """The end of a line about a misspelt word."""
    near = difflib.get_close_matches(word[:100], known, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def _report(error: Exception, debug: bool) -> int:
    """One line per problem on stderr."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, DraftwingError):
        lines, code = str(error).splitlines() or [type(error).__name__], error.exit_code
    else:
        hint = "" if debug else " (a bug; --debug shows where)"
        lines, code = [f"{type(error).__name__}: {' '.join(str(error).split())}{hint}"], 1
    for line in lines:
        sys.stderr.write(f"error: {line}\n")
    return code


def _reader_left() -> bool:
    """Whether stdout's reader has gone (`| head`), and not another pipe. Nothing more is written to stdout then."""
    probe = select.poll()
    probe.register(sys.stdout, 0)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in probe.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


if __name__ == "__main__":
    sys.exit(main())
