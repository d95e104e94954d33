"""Serve the demo model on loopback and measure plain against speculative decoding over HTTP.

Every prompt of examples/prompts is completed both ways by the same server, one request at a time, in turn; the text
must be the same. Prints a table and writes build/demo.json. With --serve it only keeps the server up.

usage: python examples/demo.py [--serve] [--tokens 40] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from draftwing.testing.loops import loops
from draftwing.testing.same_tokens import NEAR_TIE

HERE = Path(__file__).resolve().parent
CONFIG = HERE / "demo.yaml"
STOP_S = 60.0
MODES = {"plain": "off", "speculative": "on"}


@dataclass(slots=True)
class Run:
    """One completion as the client saw it. seconds: from request to last token; ttft: to the first."""

    token_ids: list[int]
    ttft: float
    seconds: float
    speculation: dict[str, Any]


@dataclass(slots=True)
class Tally:
    """The runs of one way of decoding."""

    runs: list[Run] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Tokens per second after the first chunk counts prefill too: it is what a client waits for."""
        tokens = sum(len(run.token_ids) for run in self.runs)
        return {
            "tok_s": round(tokens / sum(run.seconds for run in self.runs), 3),
            "ttft_ms": round(median(run.ttft for run in self.runs) * 1e3, 1),
        }

    def acceptance(self) -> dict[str, Any]:
        """acceptance_length: tokens per verify, bonus included. By position: share of drafts accepted up to there."""
        verifies = sum(run.speculation["num_verify_steps"] for run in self.runs)
        accepted = sum(run.speculation["num_accepted_draft_tokens"] for run in self.runs)
        drafts = sum(run.speculation["num_spec_steps"] for run in self.runs)
        depth = max((run.speculation["num_spec_tokens"] for run in self.runs), default=0)
        histograms = [run.speculation["acceptance_histogram"] for run in self.runs]
        reached = [sum(sum(histogram[d:]) for histogram in histograms) for d in range(1, depth + 1)]
        return {
            "acceptance_length": round(1 + accepted / verifies, 3) if verifies else 1.0,
            "acceptance_by_position": [round(count / drafts, 3) if drafts else 0.0 for count in reached],
        }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def command(*more: str) -> list[str]:
    return [sys.executable, "-m", "draftwing.cli", "serve", "--config", str(CONFIG), *more]


@contextmanager
def server() -> Iterator[str]:
    """A server of its own on a free port, stopped at the end; its address."""
    process = subprocess.Popen(command("--port", str(free_port()), "--json"), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(process.wait() or 1)
        yield json.loads(line)["url"]
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()


def complete(client: httpx.Client, prompt: str, tokens: int, mode: str) -> Run:
    """One streamed greedy completion."""
    body = {
        "model": "gemma-3-270m",
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "speculation": MODES[mode],
    }
    ids: list[int] = []
    speculation: dict[str, Any] = {}
    started = time.perf_counter()
    first = last = started
    with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            response.read()
            raise SystemExit(f"the server answered {response.status_code}: {response.text}")
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise SystemExit(f"the server failed: {chunk['error']['message']}")
            for choice in chunk["choices"]:
                if choice["token_ids"]:
                    last = time.perf_counter()
                    first = last if not ids else first
                    ids += choice["token_ids"]
            speculation = chunk.get("metrics", {}).get("speculative_decoding", speculation)
    return Run(ids, first - started, last - started, speculation)


def near_tie(client: httpx.Client, prompt: str, at: int) -> bool:
    """Plain decoding itself was undecided at this token: its two best logits are closer than the rule's bound."""
    body = {"model": "gemma-3-270m", "prompt": prompt, "max_tokens": at + 1, "temperature": 0, "logprobs": 2}
    answer = client.post("/v1/completions", json=body | {"speculation": "off"}).json()
    best = sorted(answer["choices"][0]["logprobs"]["top_logprobs"][at].values(), reverse=True)
    return len(best) > 1 and best[0] - best[1] < NEAR_TIE


def same(client: httpx.Client, prompt: str, plain: list[int], other: list[int]) -> bool:
    if plain == other:
        return True
    at = next((i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b), None)
    return at is not None and near_tie(client, prompt, at)


def measure(url: str, tokens: int) -> dict[str, Any]:
    """Every prompt both ways, the first way alternating; per set and over all."""
    sets: dict[str, dict[str, Tally]] = {}
    identical: dict[str, bool] = {}
    looping: dict[str, int] = {}
    with httpx.Client(base_url=url, timeout=300) as client:
        complete(client, "Warm up:", 2, "speculative")
        turn = 0
        for path in sorted((HERE / "prompts").glob("*.jsonl")):
            tallies = sets[path.stem] = {mode: Tally() for mode in MODES}
            identical[path.stem], looping[path.stem] = True, 0
            for line in path.read_text(encoding="utf-8").splitlines():
                prompt = json.loads(line)["prompt"]
                turn += 1
                for mode in sorted(MODES, reverse=bool(turn % 2)):
                    tallies[mode].runs.append(complete(client, prompt, tokens, mode))
                plain, other = (tallies[mode].runs[-1].token_ids for mode in MODES)
                identical[path.stem] &= same(client, prompt, plain, other)
                looping[path.stem] += loops(plain)
            print(f"  {path.stem}: {len(tallies['plain'].runs)} prompts done", file=sys.stderr, flush=True)
    everything = {mode: Tally([run for tallies in sets.values() for run in tallies[mode].runs]) for mode in MODES}
    result = comparison(everything, all(identical.values()))
    result["sets"] = {
        name: comparison(tallies, identical[name]) | {"looping": looping[name]} for name, tallies in sets.items()
    }
    return result


def comparison(tallies: dict[str, Tally], identical: bool) -> dict[str, Any]:
    plain, speculative = tallies["plain"], tallies["speculative"]
    fast, slow = speculative.figures(), plain.figures()
    return {
        "plain": slow,
        "speculative": fast | speculative.acceptance(),
        "speedup": round(fast["tok_s"] / slow["tok_s"], 3),
        "identical": identical,
    }


def show(result: dict[str, Any]) -> None:
    table = Table(title="Gemma 3 270M on this CPU, one request at a time, drafting by prompt lookup")
    table.add_column("prompts")
    for name in ("plain tok/s", "spec. tok/s", "speedup", "acceptance length", "plain TTFT ms", "spec. TTFT ms"):
        table.add_column(name, justify="right")
    table.add_column("identical")
    table.add_column("accepted, 1st to 4th")
    rows = [*result["sets"].items(), ("all", result)]
    for name, entry in rows:
        plain, fast = entry["plain"], entry["speculative"]
        note = f" ({entry['looping']} loop)" if entry.get("looping") else ""
        table.add_row(
            name + note,
            f"{plain['tok_s']:.1f}",
            f"{fast['tok_s']:.1f}",
            f"{entry['speedup']:.2f}x",
            f"{fast['acceptance_length']:.2f}",
            f"{plain['ttft_ms']:.0f}",
            f"{fast['ttft_ms']:.0f}",
            "yes" if entry["identical"] else "NO",
            " ".join(f"{share:.2f}" for share in fast["acceptance_by_position"][:4]),
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    if any(entry.get("looping") for _, entry in rows):
        print("loop: the model repeats itself there (it is a base model), which flatters lookup.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="only keep the server up, on port 8000")
    parser.add_argument("--tokens", type=int, default=40, metavar="N", help="new tokens of each completion")
    parser.add_argument("--json", type=Path, default=HERE.parent / "build" / "demo.json", metavar="FILE")
    args = parser.parse_args()
    if args.serve:
        os.execv(sys.executable, command())
    started = time.perf_counter()
    with server() as url:
        ready = time.perf_counter() - started
        print(f"server ready after {ready:.0f} s; measuring", file=sys.stderr, flush=True)
        result = measure(url, args.tokens)
    show(result)
    seconds = time.perf_counter() - started
    result |= {"schema": 1, "ready_s": round(ready, 1), "seconds": round(seconds, 1)}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {args.json}; the demo took {seconds:.0f} s")
    return 0 if result["identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
