"""What a row more costs on a CPU: single products of a model's layers, and whole steps beside one of transformers.

CPU time of one thread; the contenders take turns in one process, and the least time of each counts, so that other work
on the machine says little. A step of `generate` is the time between two of its tokens. A plain step is the engine's
whole step with one sequence; a verify is the target's forward over that many rows of one sequence.

usage: python benchmarks/gemm_rows.py [--model gemma-3-270m] [--rounds 12] [--products | --steps] [--json FILE]
Exit code 1: a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from draftwing.checkpoints.hub import resolve_model
from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.engine.batch import SequenceRows, chain_parents
from draftwing.engine.build import build_local, engine_for
from draftwing.engine.loading import load_target
from draftwing.engine.step import Engine
from draftwing.kernels.cpu_kernel import load_kernel
from draftwing.kernels.int8 import Int8Linear
from draftwing.kernels.linear import KERNEL_ROWS, PACKED_FROM, KernelLinear, PackedLinear

ROWS = (1, 2, 3, 4, 5, 8, 12, 16, 32, 64)
BARS = {"plain": 1 / 1.25, "4 rows": 1.15, "8 rows": 1.6, "16 rows": 2.2}  # steps of generate
INT8_BAR = 1.3  # times as fast as plain
CONTEXT = 100
STEPS = 6  # a round
WEIGHTS = 40_000_000  # read by one measurement of a product: more than a cache holds

Times = dict[str, float]


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measure(contenders: dict[str, Callable[[], object]], rounds: int) -> Times:
    """Least CPU milliseconds of each contender."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, call in contenders.items():
            started = process_time()
            call()
            best[name] = min(best[name], (process_time() - started) * 1e3)
    return best


@torch.inference_mode()
def products(model: nn.Module, rounds: int) -> dict[str, dict[int, Times]]:
    """Per shape and row count: CPU ms of one product by torch, oneDNN's packed copies and our kernel."""
    kernel = load_kernel(tell)
    layers: dict[tuple[int, int], list[nn.Linear]] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear):
            layers.setdefault((module.out_features, module.in_features), []).append(module)
    table: dict[str, dict[int, Times]] = {}
    for shape, alike in layers.items():
        some = alike[: max(WEIGHTS // (shape[0] * shape[1]), 1)]
        forms: dict[str, list[nn.Module]] = {"linear": [*some], "packed": [PackedLinear(module) for module in some]}
        if kernel is not None:
            forms["kernel"] = [KernelLinear(module, kernel) for module in some]
            forms["int8"] = [Int8Linear(module, kernel) for module in some]
        times = table[f"{shape[0]}x{shape[1]}"] = {}
        for rows in ROWS:
            calls = {name: _all(forms[name], torch.randn(rows, shape[1])) for name in forms}
            times[rows] = {name: ms / len(some) for name, ms in measure(calls, rounds).items()}
    return table


def _all(modules: list[nn.Module], x: Tensor) -> Callable[[], object]:
    return lambda: [module(x) for module in modules]


class Generate:
    """Steps of transformers' greedy `generate`, timed one by one."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        auto: Any = AutoModelForCausalLM
        self.model: Any = auto.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
        self.marks: list[float] = []

    def _mark(self, ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        self.marks.append(process_time())
        return torch.zeros(len(ids), dtype=torch.bool)

    @torch.inference_mode()
    def steps(self, prompt: list[int]) -> list[float]:
        """CPU ms from each token to the next."""
        self.marks.clear()
        ids = torch.tensor([prompt])
        self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=STEPS + 1,
            eos_token_id=self.model.config.vocab_size,  # never produced
            stopping_criteria=[self._mark],
        )
        return [(b - a) * 1e3 for a, b in pairwise(self.marks)]


def plain_steps(engine: Engine, prompt: list[int]) -> list[float]:
    """CPU ms of each decode step of one request."""
    engine.add(Request("plain", prompt, SamplingParams(max_tokens=STEPS + 1, temperature=0.0, ignore_eos=True)))
    marks = [process_time()]
    while engine.busy:
        engine.step()
        marks.append(process_time())
    return [(b - a) * 1e3 for a, b in pairwise(marks[1:])]


def verify(engine: Engine, prompt: list[int], rows: int) -> float:
    """CPU ms of one forward over a chain of this many rows, after a prompt that is in the cache."""
    tokens = np.array(prompt[:rows], dtype=np.int64)
    slots = np.arange(len(prompt) + rows, dtype=np.int64)
    sequence = SequenceRows(tokens, chain_parents(rows), slots, len(prompt), rows)
    started = process_time()
    engine.runner.forward([sequence])
    return (process_time() - started) * 1e3


def steps(generate: Generate, engines: dict[str, Engine], vocabulary: int, rounds: int) -> Times:
    """Least CPU ms of each kind of step. engines: prefix of the step's name -> engine."""
    prompt = np.random.default_rng(0).integers(5, vocabulary, CONTEXT).tolist()
    times: dict[str, list[float]] = {"generate": []}
    for _ in range(rounds):
        times["generate"] += generate.steps(prompt)
        for prefix, engine in engines.items():
            times.setdefault(f"{prefix}plain", []).extend(plain_steps(engine, prompt))
            for rows in ROWS:
                times.setdefault(f"{prefix}{rows} rows", []).append(verify(engine, prompt, rows))
    return {name: min(values) for name, values in times.items()}


def show_products(table: dict[str, dict[int, Times]]) -> None:
    print(f"rows: packed from {PACKED_FROM}, kernel up to {KERNEL_ROWS}. CPU ms of one product, least of all rounds")
    for shape, by_rows in table.items():
        print(f"\n{shape:16s}" + "".join(f"{rows:>9d}" for rows in by_rows))
        for name in next(iter(by_rows.values())):
            print(f"  {name:14s}" + "".join(f"{times[name]:9.3f}" for times in by_rows.values()))


def show_steps(times: Times) -> bool:
    """Whether every bar is met."""
    missed = False
    print(f"\n{'step':14s} {'CPU ms':>8s} {'of generate':>12s} {'bar':>6s}")
    for name, ms in times.items():
        share = ms / times["generate"]
        bar = BARS.get(name)
        missed |= bar is not None and share > bar
        verdict = "" if bar is None else f"{bar:6.2f} {'met' if share <= bar else 'MISSED'}"
        print(f"{name:14s} {ms:8.1f} {share:12.2f} {verdict}")
    gain = times["plain"] / times["int8 plain"]
    print(f"\nplain decoding is {times['generate'] / times['plain']:.2f}x as fast as generate")
    print(f"int8 is {gain:.2f}x as fast again; bar {INT8_BAR}x {'met' if gain >= INT8_BAR else 'MISSED'}")
    return not missed and gain >= INT8_BAR


def config_of(model: str, **settings: object) -> Config:
    return Config.model_validate({"model": {"path": model, "cpu_threads": 1, **settings}, "cache": {"tokens": 1024}})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma-3-270m")
    parser.add_argument("--rounds", type=int, default=12)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--products", action="store_true", help="single products only")
    only.add_argument("--steps", action="store_true", help="whole steps only")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = config_of(args.model)
    folder = resolve_model(config.model, progress=tell)
    target = load_target(folder, dtype="float32", device="cpu", threads=1)
    result: dict[str, Any] = {"schema": 1}
    met = True
    if not args.steps:
        result["products"] = products(target.model, args.rounds)
        show_products(result["products"])
    if not args.products:
        engines = {
            "": engine_for(config, target, progress=tell),
            "int8 ": build_local(config_of(args.model, quantization="int8"), progress=tell)[0],
        }
        result["steps"] = steps(Generate(folder.path), engines, target.vocab_size, args.rounds)
        result["bars"] = {**BARS, "int8": INT8_BAR}
        met = show_steps(result["steps"])
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
