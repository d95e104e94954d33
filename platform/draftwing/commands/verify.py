"""`draftwing verify`: prove on this machine that speculation changes no token (rule R1), for any config."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwing.commands.common import add_config_flags, config_from_args, print_json, say, tell
from draftwing.core import Request, SamplingParams
from draftwing.errors import ConfigError
from draftwing.limits import MAX_TOKENS, check_params
from draftwing.prompts import prompt_texts, random_prompts

if TYPE_CHECKING:
    from draftwing.testing.same_tokens import Comparison

SCHEMA = 1
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "seed": 7},
    "sampled, cut and penalised": {
        "temperature": 0.8,
        "top_p": 0.95,
        "top_k": 50,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "seed": 11,
    },
}


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "verify",
        help="prove that speculation changes no token",
        description="Decode prompts plainly, one at a time, then all together with the configured drafter, and compare "
        "every token: greedy, sampled, and with cuts and penalties.",
        allow_abbrev=False,
    )
    parser.add_argument("--prompts", type=Path, metavar="FILE", help='JSON lines of {"prompt": ...}; default: built in')
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="new tokens of each (default: 64)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    add_config_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    config = config_from_args(args).config
    if config.sampling != "invariant":
        raise ConfigError(f"verify proves sampling: invariant, but sampling is {config.sampling!r}")
    check_params(SamplingParams(max_tokens=args.max_tokens), MAX_TOKENS)
    texts = prompt_texts(args.prompts)
    from draftwing.engine.build import build_local
    from draftwing.offline import acceptance_length, run_all
    from draftwing.testing.near_tie import gap_of
    from draftwing.testing.same_tokens import compare_tokens

    engine, tokenizer = build_local(config, progress=tell)
    prompts = [tokenizer.encode(t) for t in texts] if tokenizer else random_prompts(engine.runner.vocab_size)
    rows = []
    for kind, settings in KINDS.items():
        params = SamplingParams(max_tokens=args.max_tokens, **settings)
        requests = [Request(f"{kind}/{i}", prompt, params) for i, prompt in enumerate(prompts)]
        plain = [run_all(engine, [replace(r, params=replace(params, speculate=False))])[0] for r in requests]
        drafted_before = engine.counters.draft_tokens
        outputs = run_all(engine, requests)
        rows.append(
            {
                "kind": kind,
                "comparison": compare_tokens(
                    [o.token_ids for o in plain],
                    [o.token_ids for o in outputs],
                    near_tie=gap_of(engine, requests, [o.token_ids for o in plain]),
                ),
                "drafted": engine.counters.draft_tokens - drafted_before,
                "acceptance_length": acceptance_length(outputs),
            }
        )
    engine.check()
    return _report(rows, config.policy.mode, len(prompts), as_json=args.json)


def _report(rows: list[dict[str, Any]], mode: str, prompts: int, *, as_json: bool) -> int:
    passed = all(row["comparison"].passed for row in rows)
    if as_json:
        entries = [{**row, "comparison": _entry(row["comparison"])} for row in rows]
        print_json({"schema": SCHEMA, "policy": mode, "prompts": prompts, "passed": passed, "kinds": entries})
        return 0 if passed else 1
    say(f"{prompts} prompts, one at a time and plain, against all together with policy {mode}")
    for row in rows:
        say(
            f"{row['kind']:26s} {row['comparison']}; {row['drafted']} nodes drafted, "
            f"acceptance length {row['acceptance_length']:.2f}"
        )
    if not any(row["drafted"] for row in rows):
        say("nothing was drafted: choose a drafter and a policy (--drafter ngram --draft-tokens 4) to compare more")
    say("identical" if all(row["comparison"].identical for row in rows) else "passed" if passed else "NOT IDENTICAL")
    return 0 if passed else 1


def _entry(comparison: Comparison) -> dict[str, Any]:
    return {
        "tokens": comparison.tokens,
        "identical": comparison.identical,
        "passed": comparison.passed,
        "near_ties": [str(d) for d in comparison.near_ties],
        "faults": [str(d) for d in comparison.faults],
    }
