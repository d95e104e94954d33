"""`draftwing generate`: complete prompts in this process, without a server."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from draftwing.commands.common import add_config_flags, config_from_args, print_json, say, tell
from draftwing.core import Emission, Request, SamplingParams
from draftwing.errors import ConfigError
from draftwing.limits import MAX_TOKENS, check_params

if TYPE_CHECKING:
    from draftwing.offline import Output

SCHEMA = 1


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "generate",
        help="complete prompts in this process",
        description="Complete prompts in this process; the text is printed as it comes.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "prompt", nargs="*", help="a prompt; with none and no --prompt-file, standard input is the prompt"
    )
    parser.add_argument(
        "--prompt-file", type=Path, metavar="FILE", action="append", default=[], help="one prompt a file"
    )
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="new tokens at most (default: 128)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy, the default")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="1: off, the default")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="0: off, the default")
    parser.add_argument("--seed", type=int, default=None, metavar="N", help="default: drawn, and printed")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="go on to --max-tokens")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    add_config_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    config = config_from_args(args).config
    seed = secrets.randbits(64) if args.seed is None else args.seed
    params = SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        seed=seed,
        stop=tuple(args.stop),
        ignore_eos=args.ignore_eos,
    )
    check_params(params, MAX_TOKENS)  # before a model is loaded; it holds no token ids
    prompts = _prompts(args)
    from draftwing.engine.build import build_local
    from draftwing.offline import acceptance_length, run_all

    engine, tokenizer = build_local(config, progress=tell)
    if tokenizer is None:
        raise ConfigError(f"{config.model.path} has no tokenizer, so it can't complete text; add its tokenizer files")
    requests = [Request(str(i), tokenizer.encode(prompt), params) for i, prompt in enumerate(prompts)]
    alone = len(requests) == 1 and not args.json
    started = perf_counter()
    outputs = run_all(engine, requests, on_emission=_show if alone else None)
    elapsed = perf_counter() - started
    if args.json:
        print_json({"schema": SCHEMA, "seed": seed, "seconds": elapsed, "outputs": [_entry(o) for o in outputs]})
    elif not alone:
        for prompt, output in zip(prompts, outputs, strict=True):
            say(f"--- {prompt[:60]!r}\n{output.text}")
    else:
        say()
    for output in outputs:
        if output.error is not None:
            tell(f"error: {output.error}")
    tokens = sum(len(o.token_ids) for o in outputs)
    tau = acceptance_length(outputs)
    tell(f"{tokens} tokens, {tokens / elapsed:.1f} tokens/s, acceptance length {tau:.2f}, seed {seed}")
    return 1 if any(o.finish_reason == "error" for o in outputs) else 0


def _prompts(args: argparse.Namespace) -> list[str]:
    prompts = list(args.prompt)
    for path in args.prompt_file:
        try:
            prompts.append(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"--prompt-file {path} can't be read: {reason}") from error
    if not prompts:
        if sys.stdin.isatty():
            tell("the prompt is what you type here; Ctrl-D ends it")
        prompts = [sys.stdin.read()]
    return prompts


def _show(emission: Emission) -> None:
    sys.stdout.write(emission.text)
    sys.stdout.flush()


def _entry(output: Output) -> dict[str, Any]:
    return {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "error": output.error,
        "drafted": sum(output.summary.drafted),
        "accepted": sum(output.summary.accepted),
        "verifies": output.summary.verifies,
    }
