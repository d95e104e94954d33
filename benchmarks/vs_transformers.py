"""Draftwing's engine beside transformers' `generate`, on a real model: same tokens, less time?

Rounds are interleaved (each round runs every contender once, in turn), CPU time is summed over all threads, and a
contender's figure is its median over the rounds. Prompts whose output loops are reported apart: the demo model is a
base model, and loops flatter every lookup.

usage: python benchmarks/vs_transformers.py [--model gemma-3-270m] [--tokens 48] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.engine.build import build_local
from draftwing.engine.hub import resolve_model
from draftwing.engine.offline import acceptance_length, run_all
from draftwing.testing.loops import loops

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ROOT / "examples" / "prompts"
COPY_HEAVY = ("edit", "quote")
BATCH = 8
DRAFT = 4


@dataclass(slots=True)
class Contender:
    """One way to complete the prompts; run(prompts) -> output tokens of each."""

    name: str
    run: Callable[[list[list[int]]], list[list[int]]]
    prompts: list[list[int]]
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)

    def round(self) -> None:
        cpu, wall = process_time(), perf_counter()
        self.outputs = self.run(self.prompts)
        self.cpu.append(process_time() - cpu)
        self.wall.append(perf_counter() - wall)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.outputs))

    def figures(self) -> dict[str, float]:
        cpu, wall = median(self.cpu), median(self.wall)
        return {
            "tokens": self.tokens,
            "cpu_tok_s": round(self.tokens / cpu, 2),
            "wall_tok_s": round(self.tokens / wall, 2),
            "cpu_s_min": round(min(self.cpu), 3),
        }


class Transformers:
    def __init__(self, folder: Path, tokens: int) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        ).eval()
        self.tokens = tokens

    @torch.inference_mode()
    def complete(self, prompts: list[list[int]], **options: Any) -> list[list[int]]:
        outputs = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=self.tokens, **options
            )
            outputs.append(out[0, len(prompt) :].tolist())
        return outputs


class Draftwing:
    def __init__(self, model: str, tokens: int, threads: int) -> None:
        config = Config.model_validate(
            {
                "model": {"path": model, "cpu_threads": threads},
                "drafters": [{"method": "ngram"}],
                "policy": {"mode": f"fixed:k={DRAFT}"},
                "cache": {"tokens": 16384},
            }
        )
        self.engine, self.tokenizer = build_local(config, progress=lambda line: print(line, file=sys.stderr))
        self.tokens = tokens
        self.tau = 1.0

    def complete(self, prompts: list[list[int]], *, together: bool = False, speculate: bool = False) -> list[list[int]]:
        params = SamplingParams(max_tokens=self.tokens, temperature=0.0, speculate=speculate)
        requests = [Request(str(i), prompt, params) for i, prompt in enumerate(prompts)]
        batches = [requests] if together else [[request] for request in requests]
        outputs = [output for batch in batches for output in run_all(self.engine, batch)]
        self.tau = acceptance_length(outputs)
        return [output.token_ids for output in outputs]


def read_prompts(encode: Callable[[str], list[int]]) -> dict[str, list[list[int]]]:
    sets = {}
    for path in sorted(PROMPTS.glob("*.jsonl")):
        sets[path.stem] = [encode(json.loads(line)["prompt"]) for line in path.read_text().splitlines()]
    return sets


def interleave(contenders: list[Contender], rounds: int) -> None:
    for number in range(rounds):
        for contender in contenders[number % 2 :] + contenders[: number % 2]:  # no one is always first
            contender.round()
            print(f"round {number + 1} of {rounds}: {contender.name} done", file=sys.stderr, flush=True)


def ratio(a: Contender, b: Contender) -> dict[str, float]:
    """How many times faster a is than b: medians over the rounds of tokens per second."""
    cpu = [(a.tokens / x) / (b.tokens / y) for x, y in zip(a.cpu, b.cpu, strict=True)]
    wall = [(a.tokens / x) / (b.tokens / y) for x, y in zip(a.wall, b.wall, strict=True)]
    return {"cpu": round(median(cpu), 3), "wall": round(median(wall), 3)}


def run(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(args.threads)
    folder = resolve_model(Config.model_validate({"model": {"path": args.model}}).model).path
    theirs, ours = Transformers(folder, args.tokens), Draftwing(args.model, args.tokens, args.threads)
    assert ours.tokenizer is not None
    sets = read_prompts(ours.tokenizer.encode)
    everything = [prompt for prompts in sets.values() for prompt in prompts]
    plain = {tuple(p): o for p, o in zip(everything, ours.complete(everything), strict=True)}
    copied = [prompt for name in COPY_HEAVY for prompt in sets[name]]
    straight = [prompt for prompt in copied if not loops(plain[tuple(prompt)])]
    looping = [prompt for prompt in everything if loops(plain[tuple(prompt)])]
    eight = (everything * BATCH)[:BATCH]

    contenders = {
        "generate": Contender("transformers generate", theirs.complete, everything[:4]),
        "plain": Contender("draftwing plain, batch 1", ours.complete, everything[:4]),
        "batch8": Contender("draftwing plain, batch 8", lambda p: ours.complete(p, together=True), eight),
        "copy_plain": Contender("draftwing plain, copy-heavy", ours.complete, straight),
        "copy_ngram": Contender("draftwing ngram, copy-heavy", lambda p: ours.complete(p, speculate=True), straight),
        "copy_lookup": Contender(
            "transformers prompt lookup, copy-heavy",
            lambda p: theirs.complete(p, prompt_lookup_num_tokens=DRAFT),
            straight,
        ),
    }
    if looping:
        contenders["loop_plain"] = Contender("draftwing plain, looping", ours.complete, looping)
        contenders["loop_ngram"] = Contender(
            "draftwing ngram, looping", lambda p: ours.complete(p, speculate=True), looping
        )
    interleave(list(contenders.values()), args.rounds)
    c = contenders
    ratios = {
        "plain_vs_generate": ratio(c["plain"], c["generate"]),
        "batch8_vs_batch1": ratio(c["batch8"], c["plain"]),
        "ngram_vs_plain_copy_heavy": ratio(c["copy_ngram"], c["copy_plain"]),
        "ngram_vs_prompt_lookup": ratio(c["copy_ngram"], c["copy_lookup"]),
    }
    if looping:
        ratios["ngram_vs_plain_looping"] = ratio(c["loop_ngram"], c["loop_plain"])
    return {
        "schema": 1,
        "threads": args.threads,
        "rounds": args.rounds,
        "prompts": {"copy_heavy": len(copied), "of these straight": len(straight), "looping": len(looping)},
        "contenders": {key: {"name": x.name, **x.figures()} for key, x in contenders.items()},
        "ratios": ratios,
        "same_tokens_as_generate": c["plain"].outputs == c["generate"].outputs,
        "same_tokens_with_ngram": c["copy_ngram"].outputs == c["copy_plain"].outputs,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma-3-270m")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    result = run(args)
    print(f"{'':40s} {'tokens':>7s} {'tok/CPU-s':>10s} {'tok/s':>8s}")
    for entry in result["contenders"].values():
        print(f"{entry['name']:40s} {entry['tokens']:7d} {entry['cpu_tok_s']:10.2f} {entry['wall_tok_s']:8.2f}")
    for name, value in result["ratios"].items():
        print(f"{name:40s} {value['cpu']:.2f}x CPU, {value['wall']:.2f}x wall")
    print(
        f"same tokens as generate: {result['same_tokens_as_generate']}; with ngram: {result['same_tokens_with_ngram']}"
    )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
