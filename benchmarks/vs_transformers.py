"""Draftwing beside transformers' `generate`, on a real model: same tokens, less time?

Every prompt is completed by every contender in turn, in another order each round, so that what else the machine does
hits all alike. CPU time is summed over all threads and processes that work for a contender; wall time stands beside
it. A ratio is the median over the rounds; beside it stands the ratio of the best rounds, prompt by prompt. Prompts
whose plain output loops are reported apart: the demo model is a base model, and loops flatter every lookup.

With --server the engine in this process is compared with `draftwing serve` over HTTP instead.

usage: python benchmarks/vs_transformers.py [--server] [--model gemma-3-270m] [--tokens 48] [--rounds 3] [--json FILE]
Exit code 1: tokens differ or a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psutil
import torch

from draftwing.checkpoints.hub import resolve_model
from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.engine.build import build_local
from draftwing.offline import run_all
from draftwing.testing.loops import loops

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ROOT / "examples" / "prompts"
COPY_HEAVY = ("edit", "quote")
BATCH = 8
DRAFT = 4
CACHE = 16384
CLIENT = 600.0  # seconds the HTTP client waits

Tokens = list[list[int]]
Complete = Callable[[Tokens], Tokens]


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """CPU time of these processes and all that they started, ended ones too."""
    total = 0.0
    for root in processes:
        for process in (root, *root.children(recursive=True)):
            try:
                total += sum(process.cpu_times()[:4])  # user, system, and the same of children that ended
            except psutil.NoSuchProcess:
                continue
    return total


@dataclass(slots=True)
class Run:
    """Seconds of one completion in each round, and its tokens, which are those of every round."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    output: Tokens = field(default_factory=list)


@dataclass(slots=True)
class Contender:
    """One way to complete prompts, `together` of them at a time; others: processes that work for it beside this one."""

    name: str
    complete: Complete
    together: int = 1
    others: list[psutil.Process] = field(default_factory=list)
    runs: dict[tuple[int, ...], Run] = field(default_factory=dict)

    def run(self, indexes: tuple[int, ...], prompts: Tokens) -> None:
        run = self.runs.setdefault(indexes, Run())
        cpu, wall = self._cpu(), perf_counter()
        output = self.complete([prompts[i] for i in indexes])
        run.wall.append(perf_counter() - wall)
        run.cpu.append(self._cpu() - cpu)
        if run.output and run.output != output:
            raise SystemExit(f"{self.name} gave other tokens in another round; a benchmark of two texts says nothing")
        run.output = output

    def _cpu(self) -> float:
        return sum(psutil.Process().cpu_times()[:2]) + cpu_seconds(self.others)

    def chosen(self, prompts: set[int]) -> list[Run]:
        return [run for indexes, run in self.runs.items() if prompts.issuperset(indexes)]

    def tokens(self, prompts: set[int]) -> int:
        return sum(len(output) for run in self.chosen(prompts) for output in run.output)

    def rates(self, prompts: set[int], *, wall: bool = False) -> list[float]:
        """Tokens per second of each round."""
        seconds = zip(*((run.wall if wall else run.cpu) for run in self.chosen(prompts)), strict=True)
        return [self.tokens(prompts) / sum(parts) for parts in seconds]

    def best_rate(self, prompts: set[int]) -> float:
        """Tokens per second of CPU time, of each prompt's best round: the least that other work on the machine cost."""
        return self.tokens(prompts) / sum(min(run.cpu) for run in self.chosen(prompts))


class Transformers:
    def __init__(self, folder: Path, tokens: int) -> None:
        from transformers import AutoModelForCausalLM

        auto: Any = AutoModelForCausalLM
        self.model: Any = auto.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
        self.tokens = tokens

    @torch.inference_mode()
    def complete(self, prompts: Tokens, **options: Any) -> Tokens:
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
                "cache": {"tokens": CACHE, "prefix": False},  # every round computes its prompts
            }
        )
        self.engine, tokenizer = build_local(config, progress=tell)
        if tokenizer is None:
            raise SystemExit(f"{model} has no tokenizer, so it can't read the prompts")
        self.tokenizer = tokenizer
        self.tokens = tokens

    def complete(self, prompts: Tokens, *, speculate: bool = False) -> Tokens:
        params = SamplingParams(max_tokens=self.tokens, temperature=0.0, speculate=speculate)
        requests = [Request(str(i), prompt, params) for i, prompt in enumerate(prompts)]
        return [output.token_ids for output in run_all(self.engine, requests)]


@dataclass(slots=True)
class Server:
    """`draftwing serve` over HTTP."""

    url: str
    process: psutil.Process
    model: str
    tokens: int

    def complete(self, prompts: Tokens, *, speculate: bool = False) -> Tokens:
        import httpx

        body = {
            "model": self.model,
            "prompt": prompts,
            "max_tokens": self.tokens,
            "temperature": 0,
            "return_token_ids": True,
            "speculation": "on" if speculate else "off",
        }
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=CLIENT)
        if answer.status_code != 200:
            raise SystemExit(f"the server answered {answer.status_code}: {answer.text}")
        choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
        return [choice["token_ids"] for choice in choices]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def served(args: argparse.Namespace) -> Iterator[Server]:
    """A server with the settings of the engine in this process, stopped at the end."""
    settings = [f"cache.tokens={CACHE}", "cache.prefix=false", f"server.port={free_port()}", "model.name=served"]
    command = [sys.executable, "-m", "draftwing.cli", "serve", "--json", "--model", args.model, "--drafter", "ngram"]
    command += ["--draft-tokens", str(DRAFT), "--cpu-threads", str(args.threads)]
    command += [part for setting in settings for part in ("--set", setting)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start, exit code {process.wait()}")
        yield Server(json.loads(line)["url"], psutil.Process(process.pid), "served", args.tokens)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def read_prompts(names: list[str], encode: Callable[[str], list[int]]) -> tuple[Tokens, dict[str, set[int]]]:
    """Prompts, and the indexes of each set's."""
    prompts: Tokens = []
    sets: dict[str, set[int]] = {}
    for name in names:
        texts = [json.loads(line)["prompt"] for line in (PROMPTS / f"{name}.jsonl").read_text().splitlines()]
        sets[name] = set(range(len(prompts), len(prompts) + len(texts)))
        prompts += map(encode, texts)
    return prompts, sets


def interleave(contenders: list[Contender], prompts: Tokens, rounds: int) -> None:
    """Each prompt by every contender that takes one at a time, then the batches."""
    alone = [(i,) for i in range(len(prompts))]
    batch = tuple(i % len(prompts) for i in range(BATCH))
    for number in range(rounds):
        for indexes in (*alone, batch):
            able = [c for c in contenders if c.together == len(indexes)]
            for turn in range(len(able)):
                able[(turn + number + indexes[0]) % len(able)].run(indexes, prompts)
        load = psutil.getloadavg()[0]
        tell(f"round {number + 1} of {rounds} done; load {load:.1f} on {psutil.cpu_count()} CPUs")


def ratio(a: Contender, b: Contender, prompts: set[int], bar: float | None = None) -> dict[str, Any]:
    """How many times a's tokens per second are b's, on these prompts."""
    cpu = [x / y for x, y in zip(a.rates(prompts), b.rates(prompts), strict=True)]
    wall = [x / y for x, y in zip(a.rates(prompts, wall=True), b.rates(prompts, wall=True), strict=True)]
    best = a.best_rate(prompts) / b.best_rate(prompts)
    met = None if bar is None else median(cpu) >= bar
    return {"cpu": median(cpu), "cpu_best": best, "wall": median(wall), "bar": bar, "met": met}


def against_transformers(args: argparse.Namespace, ours: Draftwing, prompts: Tokens, sets: dict[str, set[int]]) -> Any:
    folder = resolve_model(Config.model_validate({"model": {"path": args.model}}).model).path
    theirs = Transformers(folder, args.tokens)
    generate = Contender("transformers generate", theirs.complete)
    lookup = Contender(
        "transformers prompt lookup", lambda some: theirs.complete(some, prompt_lookup_num_tokens=args.lookup)
    )
    plain = Contender("draftwing plain", ours.complete)
    ngram = Contender("draftwing ngram", lambda some: ours.complete(some, speculate=True))
    batch = Contender("draftwing plain, batch 8", ours.complete, BATCH)
    batch_ngram = Contender("draftwing ngram, batch 8", lambda some: ours.complete(some, speculate=True), BATCH)
    contenders = [generate, lookup, plain, ngram, batch, batch_ngram]
    interleave(contenders, prompts, args.rounds)

    everything = set(range(len(prompts)))
    looping = {i for i in everything if loops(plain.runs[(i,)].output[0])}
    copied = set().union(*(sets[name] for name in COPY_HEAVY if name in sets)) - looping
    other = everything - looping - copied
    ratios = {
        "plain / generate": ratio(plain, generate, everything, bar=0.95),
        "batch 8 / batch 1, plain": ratio(batch, plain, everything, bar=2.0),
        "batch 8, ngram / plain": ratio(batch_ngram, batch, everything),
    }
    for name, chosen, bars in (
        ("copied", copied, (1.4, 1.0)),
        ("other", other, (None,) * 2),
        ("looping", looping, (None,) * 2),
    ):
        if chosen:
            ratios[f"ngram / plain, {name} text"] = ratio(ngram, plain, chosen, bars[0])
            ratios[f"ngram / prompt lookup, {name} text"] = ratio(ngram, lookup, chosen, bars[1])
    same = all(c.runs[(i,)].output == generate.runs[(i,)].output for c in (plain, ngram) for i in everything)
    counts = {"copied": len(copied), "other": len(other), "looping": len(looping)}
    return report(contenders, everything, ratios, same) | {"prompts": counts}


def against_server(args: argparse.Namespace, ours: Draftwing, prompts: Tokens) -> Any:
    with served(args) as server:
        engine = Contender("engine in process, ngram", lambda some: ours.complete(some, speculate=True))
        http = Contender("server, ngram", lambda some: server.complete(some, speculate=True), others=[server.process])
        engine_batch = Contender("engine in process, batch 8", ours.complete, BATCH)
        http_batch = Contender("server, batch 8", server.complete, BATCH, others=[server.process])
        contenders = [engine, http, engine_batch, http_batch]
        interleave(contenders, prompts, args.rounds)
    everything = set(range(len(prompts)))
    ratios = {
        "server / engine, batch 1": ratio(http, engine, everything),
        "server / engine, batch 8": ratio(http_batch, engine_batch, everything),
    }
    same = all(http.runs[(i,)].output == engine.runs[(i,)].output for i in everything)
    return report(contenders, everything, ratios, same)


def report(contenders: list[Contender], prompts: set[int], ratios: dict[str, Any], same: bool) -> dict[str, Any]:
    return {
        "contenders": {
            c.name: {
                "tokens": c.tokens(prompts),
                "cpu_tok_s": median(c.rates(prompts)),
                "cpu_tok_s_best": c.best_rate(prompts),
                "wall_tok_s": median(c.rates(prompts, wall=True)),
            }
            for c in contenders
        },
        "ratios": ratios,
        "same_tokens": same,
    }


def show(result: dict[str, Any]) -> None:
    print(f"{'':36s} {'tokens':>7s} {'tok/CPU-s':>10s} {'best':>7s} {'tok/s':>7s}")
    for name, x in result["contenders"].items():
        print(f"{name:36s} {x['tokens']:7d} {x['cpu_tok_s']:10.2f} {x['cpu_tok_s_best']:7.2f} {x['wall_tok_s']:7.2f}")
    print(f"\n{'':36s} {'CPU':>7s} {'best':>7s} {'wall':>7s} {'bar':>7s}")
    for name, x in result["ratios"].items():
        bar = "" if x["bar"] is None else f"{x['bar']:6.2f}x {'met' if x['met'] else 'MISSED'}"
        print(f"{name:36s} {x['cpu']:6.2f}x {x['cpu_best']:6.2f}x {x['wall']:6.2f}x {bar}")
    print(f"\nsame tokens: {'yes' if result['same_tokens'] else 'NO'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="store_true", help="compare the engine with the server around it")
    parser.add_argument("--model", default="gemma-3-270m")
    parser.add_argument("--tokens", type=int, default=48, help="new tokens of each prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads, of every contender")
    parser.add_argument("--lookup", type=int, default=DRAFT, help="draft length of transformers' prompt lookup")
    parser.add_argument("--sets", nargs="*", default=sorted(path.stem for path in PROMPTS.glob("*.jsonl")))
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ours = Draftwing(args.model, args.tokens, args.threads)
    prompts, sets = read_prompts(args.sets, ours.tokenizer.encode)
    ours.complete(prompts[:1], speculate=True)  # first calls pay for what later ones find ready
    result = against_server(args, ours, prompts) if args.server else against_transformers(args, ours, prompts, sets)
    show(result)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        settings = {name: getattr(args, name) for name in ("model", "tokens", "rounds", "threads", "sets")}
        args.json.write_text(json.dumps({"schema": 2, **settings, **result}, indent=1) + "\n")
    missed = [name for name, x in result["ratios"].items() if x["met"] is False]
    return 0 if result["same_tokens"] and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
