"""What does `adaptive` lose or gain while it knows nothing yet? Fresh policies on a real model, one thread, no profile.

In each trial plain decoding, every fixed mode and a new adaptive policy answer the same requests, in an order that
changes from trial to trial. The text is the same under all. A rate is that of committed tokens to CPU time of whole
engine steps at full concurrency and without prompts; a row holds those of the first so many steps of each trial,
relative to plain decoding's over the whole trial, as the geometric mean over trials, and its 95 % interval.

usage: python benchmarks/cold_start.py [--modes adaptive fixed:k=4] [--concurrency 1 8] [--trials 8] [--steps 100]
           [--drafter ngram] [--prompts FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from math import log
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the file runs by its path

from benchmarks.live_abba import config_for, prompts
from draftwing.core import Request, SamplingParams
from draftwing.engine.build import build_local
from draftwing.engine.step import Engine
from draftwing.policy.base import Policy
from draftwing.policy.modes import OffPolicy, parse_mode
from draftwing_tuner.paired import Ratio, Traffic, ratio

FIRST = (25, 50, 100, 200)  # steps
PLAIN = "off"
PROMPT_TOKENS, MAX_TOKENS = 160, 96


@dataclass(slots=True)
class Row:
    """steps: the first so many of each trial. drafted: tokens a step. tokens: committed a step."""

    concurrency: int
    mode: str
    steps: int
    rate: Ratio
    drafted: float
    tokens: float


Steps = list[tuple[int, int, float]]  # committed, verified draft tokens, CPU seconds


def answered(engine: Engine, policy: Policy, requests: Iterator[Request], concurrency: int, most: int) -> Steps:
    """The first so many steps of one arm of a trial."""
    engine.policy = policy
    traffic, steps = Traffic(engine, requests, concurrency), Steps()
    while len(steps) < most:
        traffic.fill()
        begun = time.process_time()
        engine.step()
        spent, record = time.process_time() - begun, engine.records[-1]
        if record.sequences == concurrency and not record.prefill_rows:
            steps.append((record.committed, record.drafted, spent))
    traffic.drain()
    while engine.busy:
        engine.step()
    return steps


def asked(texts: list[list[int]], seed: int, salt: str) -> Iterator[Request]:
    """Without end; salt keeps an arm from finding the answers of another."""
    draw = random.Random(seed)
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
    for number in count():
        yield Request(f"{salt}/{number}", draw.choice(texts)[-PROMPT_TOKENS:], params, salt=f"{salt}/{number}")


def rate(steps: Steps) -> float:
    return sum(s[0] for s in steps) / sum(s[2] for s in steps)


def rows(trials: list[dict[str, Steps]], concurrency: int) -> list[Row]:
    found = []
    for mode in trials[0]:
        if mode == PLAIN:
            continue
        for first in (steps for steps in FIRST if steps <= len(trials[0][mode])):
            parts = [trial[mode][:first] for trial in trials]
            logs = [log(rate(part) / rate(trial[PLAIN])) for part, trial in zip(parts, trials, strict=True)]
            drafted, tokens = (sum(step[i] for part in parts for step in part) / first / len(parts) for i in (1, 0))
            found.append(Row(concurrency, mode, first, ratio(logs), drafted, tokens))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", default=["adaptive", "fixed:k=4"])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--drafter", default="ngram")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--model", default="gemma-3-270m")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    engine, tokenizer = build_local(config_for(args.drafter, "adaptive", args.model, None))
    engine.clock = time.process_time
    if tokenizer is None:
        raise SystemExit(f"{args.model} has no tokenizer")
    texts = [tokenizer.encode(text) for text in prompts(args.prompts)]
    traits, modes, done = engine.drafting.drafter.traits, [PLAIN, *args.modes], []
    print(f"{'conc.':>5} {'mode':12} {'steps':>5} {'rate beside plain':>24} {'drafted':>7} {'tokens':>6}  (a step)")
    for concurrency in args.concurrency:
        trials = []
        for number in range(args.trials):
            turn = number % len(modes)
            trial = {}
            for mode in [*modes[turn:], *modes[:turn]]:
                policy = OffPolicy() if mode == PLAIN else parse_mode(mode, args.drafter, traits)
                requests = asked(texts, number, f"{concurrency}/{number}/{mode}")
                trial[mode] = answered(engine, policy, requests, concurrency, args.steps)
            trials.append(trial)
            print(f"  concurrency {concurrency}: trial {number + 1} of {args.trials}", file=sys.stderr, flush=True)
        for row in rows([{mode: trial[mode] for mode in modes} for trial in trials], concurrency):
            interval = f"{row.rate.mean:6.3f} [{row.rate.low:6.3f}, {row.rate.high:6.3f}]"
            print(f"{concurrency:5} {row.mode:12} {row.steps:5} {interval:>24} {row.drafted:7.2f} {row.tokens:6.2f}")
            done.append(asdict(row))
        sys.stdout.flush()
    if args.json is not None:
        args.json.write_text(json.dumps({"schema": 1, "rows": done}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
