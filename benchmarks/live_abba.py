"""Is a policy ever slower than plain decoding, on live traffic? Paired ABBA blocks on a real model, one thread.

For each drafter and concurrency the policy and plain decoding take turns on the same traffic, in blocks of steps that
mirror each other (`draftwing_tuner.paired`). The ratio is that of committed tokens to CPU time of whole engine steps;
wall time stands beside it. A policy that learns from step times sees CPU time too, unless --clock wall. The text is the
same under both: nothing that a policy does changes a token.

usage: python benchmarks/live_abba.py [--mode adaptive] [--drafters ngram suffix] [--concurrency 1 2 4 8] [--rounds 10]
           [--steps 24] [--prompts FILE] [--profile URI] [--clock cpu]
           [--json FILE]
Exit code 1: at some level the upper end of the 95 % interval is below 0.97x plain.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from draftwing.config import load_config
from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.engine.build import build_local
from draftwing.engine.step import Engine
from draftwing_tuner.bench import CLOCKS
from draftwing_tuner.paired import Standing, Traffic, compare, plain_policy, run_round

ROOT = Path(__file__).resolve().parents[1]
BAR = 0.97
PROMPT_TOKENS = 160
MAX_TOKENS = 96


def prompts(path: Path | None) -> list[str]:
    """Of JSON lines with a `prompt`, or with `turns`, whose first counts; by default the examples'."""
    files = [path] if path is not None else sorted((ROOT / "examples" / "prompts").glob("*.jsonl"))
    entries = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines() if line]
    return [entry["prompt"] if "prompt" in entry else entry["turns"][0] for entry in entries]


def requests(tokens: list[list[int]]) -> Iterator[Request]:
    """Without end. Each pass over the prompts has a salt of its own, so that nobody finds an earlier answer to it."""
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
    for number in count():
        lap, place = divmod(number, len(tokens))
        yield Request(f"{number}", tokens[place][-PROMPT_TOKENS:], params, salt=f"lap-{lap}")


def config_for(drafter: str, mode: str, model: str, profile: str | None) -> Config:
    settings: dict[str, Any] = {
        "model.path": model,
        "model.dtype": "float32",
        "model.device": "cpu",
        "model.cpu_threads": 1,
        "drafters": [{"method": drafter}],
        "policy.mode": mode,
        "cache.tokens": 8192,
        "limits.sequences": 16,
        "limits.context": 2048,
    }
    return load_config(None, settings | ({"policy.profile": profile} if profile else {})).config


def level(engine: Engine, tokens: list[list[int]], concurrency: int, rounds: int, steps: int) -> Standing:
    policies = {"plain": plain_policy(), "policy": engine.policy}
    traffic = Traffic(engine, requests(tokens), concurrency)
    done = []
    for number in range(rounds):
        done.append(run_round(traffic, policies, steps))
        print(f"  concurrency {concurrency}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    traffic.drain()
    engine.policy = policies["policy"]
    (standing,) = compare(done, "plain")
    return standing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="adaptive")
    parser.add_argument("--drafters", nargs="+", default=["ngram", "suffix"])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--profile")
    parser.add_argument("--model", default="gemma-3-270m")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    print(f"mode {args.mode}, {args.model}, float32, one thread; rates beside plain decoding, 95 % intervals")
    print(
        f"{'drafter':8} {'conc.':>5} {'CPU time':>22} {'width':>6} {'wall time':>22} {'k > 0':>6} {'tokens/step':>11}"
    )
    for drafter in args.drafters:
        engine, tokenizer = build_local(config_for(drafter, args.mode, args.model, args.profile))
        engine.clock = CLOCKS[args.clock]
        if tokenizer is None:
            raise SystemExit(f"{args.model} has no tokenizer")
        tokens = [tokenizer.encode(text) for text in prompts(args.prompts)]
        for concurrency in args.concurrency:
            found = level(engine, tokens, concurrency, args.rounds, args.steps)
            rows.append({"drafter": drafter, "concurrency": concurrency} | asdict(found))
            print(
                f"{drafter:8} {concurrency:5} {found.cpu.mean:6.3f} [{found.cpu.low:6.3f}, {found.cpu.high:6.3f}] "
                f"{found.cpu.width:6.3f} {found.wall.mean:6.3f} [{found.wall.low:6.3f}, {found.wall.high:6.3f}] "
                f"{found.drafting:6.0%} {found.tokens:11.2f}",
                flush=True,
            )
    passed = all(row["cpu"]["high"] >= BAR for row in rows)
    print(f"upper ends at least {BAR}: {'yes' if passed else 'NO'}")
    if args.json is not None:
        document = {"schema": 1, "mode": args.mode, "bar": BAR, "passed": passed, "levels": rows}
        args.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
