"""Whether memory grows: many mixed steps of a tiny model, and its resident size near their beginning and at their end.

Requests of random lengths and parameters come, share prefixes, are cancelled, preempted and drafted for by turns. The
median resident size of the run's last tenth may be at most 1.02 times that of its second tenth. All pages of the cache
are touched first, and the telemetry's window is filled; what a drafter keeps of earlier requests is bounded so that it
is full before the second tenth.

usage: python benchmarks/memory_run.py [--steps 20000] [--method draft_model] [--model FOLDER] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams, StepRecord
from draftwing.engine.build import build_engine
from draftwing.engine.step import Engine
from draftwing.policy.modes import parse_mode

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "tests" / "goldens" / "hf_greedy_llama8" / "target"
BOUND = 1.02
MODES = ("fixed:k=4", "off", "fixed:tree=2x2x1")
OPTIONS: dict[str, dict[str, Any]] = {"suffix": {"max_requests": 400}}  # about 520 requests come in a tenth
EVERY = 10  # steps between two readings
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def engine_of(model: Path, method: str) -> Engine:
    options = {"path": str(model)} if method == "draft_model" else OPTIONS.get(method, {})
    document = {
        "model": {"path": str(model), "cpu_threads": 1},
        "drafters": [{"method": method, **options}],
        "policy": {"mode": MODES[0]},
        "limits": {"prefill_chunk": 16, "sequences": 6, "batch_tokens": 64, "context": 128, "queue": 16},
        "cache": {"tokens": 320, "block_tokens": 4},
    }
    return build_engine(Config.model_validate(document))


class Traffic:
    """Random requests from a fixed seed. texts: a few that later prompts begin with."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.draw = np.random.default_rng(5)
        self.texts = [self._tokens(40) for _ in range(8)]
        self.live: set[str] = set()
        self.arrived = self.cancelled = 0

    def _tokens(self, count: int) -> list[int]:
        tokens: list[int] = self.draw.integers(3, self.engine.runner.vocab_size, count).tolist()
        return tokens

    def _arrive(self) -> None:
        draw = self.draw
        if draw.random() < 0.1:
            self.texts[int(draw.integers(len(self.texts)))] = self._tokens(40)
        text = self.texts[int(draw.integers(len(self.texts)))]
        prompt = [*text[: int(draw.integers(41))], *self._tokens(int(draw.integers(1, 30)))]
        params = SamplingParams(
            max_tokens=int(draw.integers(1, 50)),
            temperature=float(draw.choice([0.0, 0.8])),
            top_p=float(draw.choice([1.0, 0.9])),
            seed=int(draw.integers(2**32)),
            logprobs=3 if draw.random() < 0.2 else None,
            ignore_eos=True,
        )
        if draw.random() < 0.3:
            params = replace(params, repetition_penalty=1.2, frequency_penalty=0.2)
        request = Request(f"r{self.arrived}", prompt, params, salt=str(draw.choice(["", "a"])))
        self.arrived += 1
        self.live.add(request.id)
        self.engine.add(request)

    def step(self) -> None:
        while self.engine.waiting < 4:
            self._arrive()
        if self.draw.random() < 0.02:
            name = str(self.draw.choice(sorted(self.live)))
            self.engine.cancel(name)
            self.live.discard(name)
            self.cancelled += 1
        for emission in self.engine.step():
            if emission.finish_reason is not None:
                self.live.discard(emission.request_id)


def touch(engine: Engine) -> None:
    """Write every page of the target's cache, and fill the telemetry's window with records of their own."""
    for keys, values in engine.runner.pages:  # type: ignore[attr-defined]
        keys.fill_(0.0)
        values.fill_(0.0)
    traffic = Traffic(engine)
    traffic.step()
    records, last = engine.records, engine.records[-1]
    fields = {name: getattr(last, name) for name in StepRecord.__slots__}
    for at in range(records.maxlen or 0):
        fresh = {name: value + at * 1e-9 if isinstance(value, float) else value for name, value in fields.items()}
        records.append(StepRecord(**{**fresh, "step": 1000 + at, "context": 1000 + at}))
    for name in sorted(traffic.live):
        engine.cancel(name)


def run(steps: int, model: Path, method: str) -> dict[str, Any]:
    """The median resident bytes of every tenth, and what the steps did."""
    engine = engine_of(model, method)
    touch(engine)
    traffic, sizes = Traffic(engine), []
    for at in range(steps):
        if at % 50 == 0:
            engine.policy = parse_mode(MODES[at // 50 % len(MODES)], method)
        traffic.step()
        if at % EVERY == 0:
            sizes.append(resident_bytes())
        if (at + 1) % max(steps // 10, 1) == 0:
            print(f"{at + 1} steps, {sizes[-1] / 2**20:.1f} MiB", file=sys.stderr, flush=True)
    engine.check()
    tenths = [median(part) for part in np.array_split(np.array(sizes), 10)]
    counters = engine.counters
    return {
        "method": method,
        "steps": steps,
        "tenths_mib": [round(float(size) / 2**20, 2) for size in tenths],
        "growth": float(tenths[-1] / tenths[1]),
        "met": bool(tenths[-1] <= BOUND * tenths[1]),
        "requests": traffic.arrived,
        "cancelled": traffic.cancelled,
        "preemptions": counters.preemptions,
        "prefix_hits": counters.prefix_hits,
        "generated": counters.generated_tokens,
        "accepted": counters.accepted_tokens,
        "rejected": counters.draft_tokens - counters.accepted_tokens,
        "failures": engine.drafting.failures,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--method", default="draft_model")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = run(args.steps, args.model, args.method)
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"schema": 1, "bound": BOUND, **result}, indent=1) + "\n")
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
