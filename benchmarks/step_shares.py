"""Where a step's time goes on a real model: the model's forward, the choice of tokens, and the engine around them.

CPU time, not wall time, so that other work on the machine counts little. `model` is the target's forward alone, with
attention; `batch` is what lays rows out for it; the rest are the parts of `StepRecord`. Steps that prefill are left
out. The design allows the engine outside model and sampling 5 % of a step.

usage: python benchmarks/step_shares.py [--model gemma-3-270m] [--tokens 32] [--profile] [--json FILE]
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch

from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams, StepRecord
from draftwing.engine import step as step_module
from draftwing.engine.build import build_local
from draftwing.engine.step import Engine
from draftwing.policy.modes import parse_mode

ROOT = Path(__file__).resolve().parents[1]
BOUND = 0.05
PARTS = ("model", "sample", "schedule", "draft", "batch", "commit", "other")
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.05, "frequency_penalty": 0.1}
CASES: list[tuple[str, str, int, dict[str, Any]]] = [
    ("plain, batch 1", "off", 1, {"temperature": 0.0}),
    ("plain, batch 8", "off", 8, {"temperature": 0.0}),
    ("chain k=4, batch 1", "fixed:k=4", 1, {"temperature": 0.0}),
    ("chain k=4, batch 8", "fixed:k=4", 8, {"temperature": 0.0}),
    ("tree 3x2x1, batch 8", "fixed:tree=3x2x1", 8, {"temperature": 0.0}),
    ("chain k=4, batch 8, sampled", "fixed:k=4", 8, SAMPLED),
]


@dataclass(slots=True)
class Watch:
    """CPU seconds inside the model's forward, and of each whole step."""

    model_s: float = 0.0
    started: float = 0.0
    steps: list[dict[str, float]] = field(default_factory=list)

    def attach(self, model: torch.nn.Module) -> None:
        model.register_forward_pre_hook(lambda *_: self._enter())
        model.register_forward_hook(lambda *_: self._leave())

    def _enter(self) -> None:
        self.started = process_time()

    def _leave(self) -> None:
        self.model_s += process_time() - self.started

    def step(self, engine: Engine) -> None:
        self.model_s = 0.0
        started = process_time()
        engine.step()
        total = process_time() - started
        record: StepRecord = engine.records[-1]
        if record.prefill_rows:
            return
        parts = {
            "model": self.model_s,
            "sample": record.sample_s,
            "schedule": record.schedule_s,
            "draft": record.draft_s,
            "batch": record.forward_s - self.model_s,
            "commit": record.commit_s,
        }
        self.steps.append({**parts, "other": total - sum(parts.values()), "rows": record.rows})


def prompts_of(encode: Any) -> list[list[int]]:
    files = sorted((ROOT / "examples" / "prompts").glob("*.jsonl"))
    return [encode(json.loads(line)["prompt"]) for path in files for line in path.read_text().splitlines()]


def measure(watch: Watch, engine: Engine, requests: list[Request], profile: cProfile.Profile | None) -> dict[str, Any]:
    watch.steps.clear()
    for request in requests:
        engine.add(request)
    while engine.busy:
        if profile is not None:
            profile.enable()
        watch.step(engine)
        if profile is not None:
            profile.disable()
    times = {part: median(step[part] for step in watch.steps) for part in PARTS}
    total = sum(times.values())
    outside = total - times["model"] - times["sample"]
    return {
        "steps": len(watch.steps),
        "rows": median(step["rows"] for step in watch.steps),
        "ms": {part: seconds * 1e3 for part, seconds in times.items()},
        "outside": outside / total,
        "met": outside / total <= BOUND,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma-3-270m")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--profile", action="store_true", help="print where the engine itself spends its time")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    step_module.perf_counter = process_time  # the marks of a StepRecord in CPU time
    config = {"model": {"path": args.model}, "drafters": [{"method": "ngram"}], "cache": {"tokens": 8192}}
    engine, tokenizer = build_local(Config.model_validate(config))
    assert tokenizer is not None
    prompts = prompts_of(tokenizer.encode)
    watch, results = Watch(), {}
    watch.attach(engine.runner.model)  # type: ignore[attr-defined]
    profile = cProfile.Profile() if args.profile else None
    print(f"{'CPU ms a step, median':30s} {'rows':>5s} " + " ".join(f"{part:>9s}" for part in PARTS) + "   outside")
    for name, mode, batch, settings in CASES:
        engine.policy = parse_mode(mode, "ngram")
        params = SamplingParams(max_tokens=args.tokens, **settings)
        requests = [Request(str(i), prompt, params) for i, prompt in enumerate((prompts * batch)[-batch:])]
        result = results[name] = measure(watch, engine, requests, profile)
        columns = " ".join(f"{result['ms'][part]:9.3f}" for part in PARTS)
        print(f"{name:30s} {result['rows']:5.0f} {columns}   {result['outside']:.1%}", flush=True)
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"schema": 1, "bound": BOUND, "cases": results}, indent=1) + "\n")
    return 0 if all(result["met"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
