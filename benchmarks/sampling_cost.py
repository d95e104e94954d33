"""What choosing a token costs: CPU milliseconds a row by setting and by rows in the verify, one thread.

    python benchmarks/sampling_cost.py [--vocab 262144] [--logits FILE] [--json]

Logits are drawn like a language model's: a normal body and a head whose entropy is that of running text. `--logits`
takes a safetensors file with a tensor `logits` [rows, V] from a real model instead.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from draftwing.core import SamplingParams
from draftwing.engine.processors import SampleRows, SamplerState
from draftwing.engine.sampling import choose

SETTINGS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0),
    "temperature 1": SamplingParams(),
    "temperature 0.7": SamplingParams(temperature=0.7),
    "temperature 1.5": SamplingParams(temperature=1.5),
    "top_p 0.9": SamplingParams(top_p=0.9),
    "top_k 50": SamplingParams(top_k=50),
    "min_p 0.05": SamplingParams(min_p=0.05),
    "top_k 50, top_p 0.9": SamplingParams(top_k=50, top_p=0.9),
    "penalties": SamplingParams(repetition_penalty=1.1, frequency_penalty=0.3, presence_penalty=0.2),
    "penalties, temperature 0": SamplingParams(temperature=0, repetition_penalty=1.1),
    "all": SamplingParams(temperature=0.8, top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.1),
}


def model_like(rows: int, vocab: int) -> torch.Tensor:
    """A normal body (standard deviation 3) and, in each row, a head of 400 tokens falling off from its top."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocab, generator=generator) * 3
    head = 22 - 1.6 * torch.arange(1, 401).log() + torch.randn(rows, 400, generator=generator)
    for row in range(rows):
        logits[row, torch.randperm(vocab, generator=generator)[:400]] = head[row]
    return logits


def a_verify(params: SamplingParams, rows: int, vocab: int) -> SampleRows:
    """One sequence of 512 prompt and 128 output tokens, drafting a chain of rows - 1 tokens."""
    random = np.random.default_rng(0)
    state = SamplerState.create(params, random.integers(0, vocab, 512))
    state.commit(random.integers(0, vocab, 128))
    chain = random.integers(0, vocab, rows)
    below = np.tril(np.ones((rows, rows), dtype=np.bool_), -1)
    path_rows, path_nodes = np.nonzero(below)
    return SampleRows([state], np.zeros(rows, dtype=np.int64), 640 + np.arange(rows), path_rows, chain[path_nodes])


def cost(logits: torch.Tensor, params: SamplingParams, rows: int) -> float:
    """CPU milliseconds a row: the least of three tries, the median over rows at different positions."""
    verify = a_verify(params, rows, logits.shape[1])
    turns = []
    for turn in range(10):
        start = (turn * rows) % max(len(logits) - rows, 1)
        verify.positions = verify.positions + rows
        part = logits[start : start + rows]
        turns.append(min(_timed(partial(choose, part, verify)) for _ in range(3)))
    return float(np.median(turns)) * 1e3 / rows


def _timed(work: Callable[[], object]) -> float:
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=262144)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--logits", help="safetensors file with real logits")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.logits:
        from safetensors.torch import load_file

        logits = load_file(args.logits)["logits"].float()
    else:
        logits = model_like(32, args.vocab)
    logits = logits.to(args.device)
    copy = min(_timed(logits[:1].clone) for _ in range(20)) * 1e3
    table = {name: {n: cost(logits, params, n) for n in args.rows} for name, params in SETTINGS.items()}
    if args.json:
        print(json.dumps({"schema": 1, "vocab": logits.shape[1], "copy_ms": copy, "ms_per_row": table}, indent=1))
        return
    print(f"copying a row takes {copy:.3f} ms")
    print(f"{'CPU ms a row, V = ' + str(logits.shape[1]):30s}" + "".join(f"{n:>8d}" for n in args.rows) + "   rows")
    for name, row in table.items():
        print(f"{name:30s}" + "".join(f"{row[n]:8.3f}" for n in args.rows))


if __name__ == "__main__":
    main()
